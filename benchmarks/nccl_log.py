"""How long reading an NCCL debug log of 100 MB takes, and how much memory: must stay under 2 s and bounded.

python benchmarks/nccl_log.py
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perfgate.host.nccl import read_nccl_logs
from tests.unit.host.nccl_logs import choices, rank_lines, sender

SIZE = 100_000_000


def channels() -> Iterator[str]:
    while True:
        for channel in range(32):
            for rank in range(8):
                yield f"{sender(rank)}Channel {channel:02d}/0 : {rank}[{rank}] -> {(rank + 1) % 8}[0] via P2P/CUMEM"


def tuning() -> Iterator[str]:
    while True:
        yield from choices()


def calls() -> Iterator[str]:
    """Every line different: what NCCL_DEBUG_SUBSYS=COLL writes."""
    count = 0
    while True:
        count += 1
        yield (
            f"{sender(count % 8)}AllReduce: opCount {count:x} sendbuff 0x{count:x} recvbuff 0x96d44e200 count 2359808"
            f" datatype 7 op 0 root 0 comm 0x555e2c6387e0 [nranks=8] stream 0x555e2b3a4370"
        )


def main() -> None:
    print(f"{'log':10} {'MB':>6} {'lines':>9} {'seconds':>8} {'peak MB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in (channels, tuning, calls):
            path = Path(folder) / kind.__name__
            lines = write(path, kind())
            begin = time.perf_counter()
            report = read_nccl_logs([path])
            seconds = time.perf_counter() - begin
            assert len(report.ranks) == 8
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{kind.__name__:10} {path.stat().st_size / 1e6:6.1f} {lines:9} {seconds:8.2f} {peak:8.0f}")
            path.unlink()


def write(path: Path, lines: Iterator[str]) -> int:
    count = size = 0
    with path.open("w") as file:
        for rank in range(8):
            file.write("\n".join(rank_lines(rank)) + "\n")
        for line in lines:
            count += 1
            size += file.write(line + "\n")
            if size > SIZE:
                return count
    return count


if __name__ == "__main__":
    main()
