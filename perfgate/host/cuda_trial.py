"""What a server does first of all with the GPUs, tried by the driver's library alone. Run as a script; stdlib only.

    python cuda_trial.py [init]     one line of JSON: {"gpus": 8, "peers": 56, "pairs": 56}, or what failed

`init` only starts CUDA, which makes the device nodes where a program outside the sandbox may.
"""

import ctypes
import json
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
BYTES = 1 << 20


class Failed(Exception):
    pass


def call(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        raise Failed(f"{name}: {(text.value or b'').decode(errors='replace') or code}")


def number_of(library: Any, name: str, *arguments: Any) -> int:
    out = ctypes.c_int()
    call(library, name, ctypes.byref(out), *arguments)
    return out.value


def try_gpus(library: Any) -> dict[str, int]:
    count = number_of(library, "cuDeviceGetCount")
    contexts = []
    for index in range(count):
        device, context, memory = number_of(library, "cuDeviceGet", index), ctypes.c_void_p(), ctypes.c_uint64()
        call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call(library, "cuCtxSetCurrent", context)
        call(library, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
        call(library, "cuMemFree_v2", memory)
        contexts.append((device, context))
    peers = 0
    for device, context in contexts:
        call(library, "cuCtxSetCurrent", context)
        for other, others in contexts:
            if other != device and number_of(library, "cuDeviceCanAccessPeer", device, other):
                call(library, "cuCtxEnablePeerAccess", others, 0)
                peers += 1
    return {"gpus": count, "peers": peers, "pairs": count * (count - 1)}


def main(argv: list[str]) -> dict[str, int | str]:
    try:
        library = ctypes.CDLL(LIBRARY)
        call(library, "cuInit", 0)
        return {} if argv else {**try_gpus(library)}
    except (Failed, OSError) as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
