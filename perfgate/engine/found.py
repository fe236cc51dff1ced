"""What a process finds at its start on this box, before any code of a commit can say so.

The server's own word for it is a stranger's. So the same environment is handed, under the same confinement, to the
interpreter that the side's environment was made from: without the commit's tree, without the packages installed for
it, without the HOME's own. What that process sees differently for base and head is the box's doing: a
`sitecustomize` of the interpreter, a wrapper, an `ld.so` setting.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from perfgate.host.sandbox import OUTER_ENVIRONMENT, confine
from perfgate.probe.inside.readings import PREFIXES, variables

if TYPE_CHECKING:
    from perfgate.engine.server import LaunchSpec

READ_S = 20.0  # for a process that needs a twentieth of a second
MOST = 1 << 20  # characters of its answer
CODE = f"import json, os; print(json.dumps({{k: v for k, v in os.environ.items() if k.startswith({PREFIXES!r})}}))"


def found_at_start(spec: LaunchSpec) -> dict[str, str] | None:
    """NCCL_*, SGLANG_* and CUDA_* variables; None where they cannot be read."""
    interpreter = Path(spec.argv[0]).resolve()
    environment = {name: value for name, value in spec.environment.items() if not name.startswith("PYTHON")}
    argv = confine(
        (str(interpreter), "-s", "-c", CODE),
        environment,
        confinement=spec.confinement,
        readable=spec.readable,
        writable=spec.writable,
        cwd=Path("/"),
    )
    try:
        done = subprocess.run(
            argv, env=OUTER_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=READ_S, check=True
        )
        return variables(json.loads(done.stdout[:MOST]))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
