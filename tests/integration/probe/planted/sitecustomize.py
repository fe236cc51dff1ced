"""A user's sitecustomize, further down the path than the probe's. It sets a variable, as users do, and plants what the
tests look for in SGLang's EAGLE worker, ruled by the first byte of the file named in PLANTED:

    "0" nothing   "v" 4 ms in verify, every second cycle   "d" the same in draft   "a" drafts that are always wrong
"""

import mmap
import os
import sys
import time
from pathlib import Path

MODULE = "sglang.srt.speculative.eagle_worker_v2"
DELAY_S = float(os.environ.get("PLANTED_MS", "4")) / 1000

os.environ.setdefault("NCCL_PROTO", "LL")


def wait(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def plant(module):
    with Path(os.environ["PLANTED"]).open("rb") as file:
        byte = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    cycles = [0]
    draft, verify = module.EagleDraftWorker.draft, module.EAGLEWorkerV2.verify

    def planted_draft(self, batch, **options):
        cycles[0] += 1
        if byte[:] == b"d" and cycles[0] % 2 == 0:
            wait(DELAY_S)
        proposed = draft(self, batch, **options)
        if byte[:] == b"a":
            tokens = proposed.draft_token.view(len(batch.seq_lens), -1)
            tokens[:, 1:] = (tokens[:, 1:] + 511) % 1000
        return proposed

    def planted_verify(self, batch, **options):
        if byte[:] == b"v" and cycles[0] % 2 == 0:
            wait(DELAY_S)
        return verify(self, batch, **options)

    module.EagleDraftWorker.draft, module.EAGLEWorkerV2.verify = planted_draft, planted_verify


class Planter:
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(name)
        execute = spec.loader.exec_module

        def then_plant(module):
            execute(module)
            plant(module)

        spec.loader.exec_module = then_plant
        return spec


if "PLANTED" in os.environ:
    sys.meta_path.insert(0, Planter())
