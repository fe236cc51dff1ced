"""What a server's environment has to be able to do, tried inside of it. Run as a script by the environment's Python.

python trial_script.py inductor cuda|cpu      compiles a small function with PyTorch's compiler and runs it
python trial_script.py headers                where Python.h should lie; status 1 where it does not
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def inductor(device: str) -> None:
    import torch

    compiled = torch.compile(lambda x: (x.sin() + 1).sum())
    value = compiled(torch.zeros(1024, device=device))
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}: {float(value):.0f} of 1024")


def headers() -> int:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    print(header)
    return 0 if header.is_file() else 1


if __name__ == "__main__":
    if sys.argv[1] == "headers":
        sys.exit(headers())
    inductor(sys.argv[2])
