"""`python -m perfgate.host.gpus_free`: exit status 0 when nobody is on the GPUs, 1 and a line for each otherwise.

For the watchdog, which outlives perfgate and must not load its whole house.
"""

from __future__ import annotations

import sys
import time

from perfgate.host.gpu import describe_gpus, why_not_free
from perfgate.host.nvml import Nvml, NvmlAbsentError


def main() -> int:
    try:
        nvml = Nvml.open()
    except NvmlAbsentError:
        return 0
    with nvml:
        sentences = why_not_free(describe_gpus(nvml, time.monotonic()))
    for sentence in sentences:
        print(sentence)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
