"""NCCL debug logs as the releases write them, for as many ranks as wanted. Forms as seen on real machines; the
machine in them is made up."""

from __future__ import annotations

HOST = "gpu-box-17"

MATRIX = """Enabled NCCL Func/Proto/Algo Matrix:
     Function |       LL     LL128    Simple   |          Tree           Ring  CollNetDirect   CollNetChain
    Broadcast |        1         2         1   |             1              1              0              0
    AllReduce |        1         0         1   |             0              1              0              0
"""


def sender(rank: int, device: int | None = None, thread: int = 0) -> str:
    pid = 4000 + rank
    return f"{HOST}:{pid}:{pid + thread} [{rank if device is None else device}] NCCL INFO "


def rank_lines(rank: int, ranks: int = 8, release: str = "2.27.5") -> list[str]:
    """All that one rank says while it starts, with the story's tuning."""
    say = sender(rank)
    nvls = "" if release < "2.19" else " 0 nvls channels,"
    init = "ncclCommInitRankConfig " if release >= "2.20" else ""
    communicator = f"{init}comm 0x5a{rank}0 rank {rank} nranks {ranks} cudaDev {rank} busId 11000 commId 0x77"
    lines = [
        f"{say}Bootstrap: Using eno1:10.20.30.40<0>",
        f"{say}NCCL_PROTO set by environment to LL",
        f"{say}NCCL_P2P_LEVEL set by environment to SYS",
        f"{say}NCCL_MIN_NCHANNELS set by environment to 8.",
        f"{say}NCCL_BUFFSIZE set by environment to 16777216.",
        f"{say}Invalid value many for NCCL_NTHREADS, using default -2.",
        f"{say}Pattern 4, crossNic 0, nChannels 8, bw 20.000000/20.000000, type PHB/PIX, sameChannels 1",
        f"{say}{communicator} - Init START",
        *(
            f"{say}Channel {c:02d}/0 : {rank}[{rank}] -> {(rank + 1) % ranks}[{(rank + 1) % ranks}] via P2P/IPC"
            for c in range(8)
        ),
        f"{sender(rank, device=0, thread=9)}[Proxy Progress] Device {rank} CPU core 20",
        f"{say}8 coll channels, 8 collnet channels,{nvls} 8 p2p channels, 2 p2p channels per peer",
    ]
    if rank == 0:
        lines += [f"{say}NCCL version {release}+cuda12.9", *f"{say}{MATRIX}".splitlines()]
    lines.append(f"{say}{communicator} - Init COMPLETE")
    return lines


def choices(release: str = "2.27.5") -> list[str]:
    """What TUNING adds at each size: in words since 2.24, before that in numbers."""
    if release >= "2.24":
        return [
            f"{sender(0)}AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..7}}" for size in SIZES
        ]
    return [f"{sender(0)}AllReduce: {size} Bytes -> Algo 1 proto 0 time 26.100000" for size in SIZES]


SIZES = (32768, 65536, 262144)
