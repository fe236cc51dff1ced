"""`python -m perfgate.host.gpus_free`: exit status 0 when nobody is on the GPUs, 1 and a line for each otherwise.

For the watchdog, which outlives perfgate and must not load its whole house. Which GPUs are meant, and who may be on
them, stands in its one argument.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from perfgate.host.gpu import ALL_GPUS, GpuShare, describe_gpus, why_not_free
from perfgate.host.nvml import Nvml, NvmlAbsentError


def gpus_free_command(share: GpuShare) -> tuple[str, ...]:
    return (sys.executable, "-m", "perfgate.host.gpus_free", json.dumps(asdict(share)))


def main(argv: list[str]) -> int:
    body = json.loads(argv[0]) if argv else asdict(ALL_GPUS)
    visible = body["visible"]
    share = GpuShare(visible=None if visible is None else tuple(visible), residents=body["residents"])
    try:
        nvml = Nvml.open(share.visible)
    except NvmlAbsentError:
        return 0
    with nvml:
        sentences = why_not_free(describe_gpus(nvml, time.monotonic()), share=share)
    for sentence in sentences:
        print(sentence)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
