"""Private HOMEs and what may grow in them: JIT caches, one set per side's tree and environment.

Base and head share nothing that either can write. Written by PR code, so read here without following a link, without
opening anything but regular files, and within limits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfgate.build import BuiltSide
from perfgate.errors import PerfgateError
from perfgate.records.files import write_whole
from perfgate.store.entries import companion
from perfgate.store.folders import Store
from perfgate.store.manifest import walk

_BLOCK = 1 << 20
_HASH_LIMIT = 20 * 2**30


@dataclass(frozen=True)
class Home:
    path: Path
    launches: Mapping[str, int]  # what was served → launches that have warmed it for that so far

    def cold_for(self, served: str) -> bool:
        """`served`: a name for flags and model. Others compile other kernels, so they do not count."""
        return served not in self.launches

    @property
    def variables(self) -> Mapping[str, str]:
        """What sends every cache that SGLang and its libraries know into this HOME, on old versions and new."""
        cache = self.path / ".cache"
        return {
            "HOME": str(self.path),
            "XDG_CACHE_HOME": str(cache),
            "XDG_CONFIG_HOME": str(self.path / ".config"),
            "TMPDIR": str(self.path / "tmp"),
            "SGLANG_CACHE_DIR": str(cache / "sglang"),
            "SGLANG_DG_CACHE_DIR": str(cache / "deep_gemm"),
            "DG_JIT_CACHE_DIR": str(cache / "deep_gemm"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TORCH_EXTENSIONS_DIR": str(cache / "torch_extensions"),
            "TILELANG_CACHE_DIR": str(cache / "tilelang"),
            "FLASHINFER_WORKSPACE_BASE": str(self.path),
            "CUDA_CACHE_PATH": str(cache / "cuda"),
            "TVM_FFI_CACHE_DIR": str(cache / "tvm-ffi"),
        }


def home_for(store: Store, built: BuiltSide) -> Home:
    """The HOME of a side's tree in its environment, held until the store is closed."""
    name = f"{built.tree.name[:16]}-{built.key[:16]}"
    if not store.entry("homes", name).exists():
        companion(store.entry("homes", name), "launches").unlink(missing_ok=True)
    home = read_home(store.use("homes", name))
    _own_folder(home.path / "tmp")
    return home


def _own_folder(path: Path) -> None:
    """Makes it a folder that its owner can use, whatever the last server left in its place."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    path.mkdir(exist_ok=True)
    path.chmod(0o700)


def read_home(path: Path) -> Home:
    """A HOME that is held already, as it is now; open to us, though the last server may have locked it."""
    path.chmod(0o700)
    return Home(path, _launches(path))


def mark_warm(home: Home, served: str) -> Home:
    """After a launch that served: the code that it needs is compiled from now on."""
    launches = _launches(home.path)
    launches[served] = launches.get(served, 0) + 1
    write_whole(companion(home.path, "launches"), json.dumps(launches))
    return Home(home.path, launches)


def _launches(path: Path) -> dict[str, int]:
    try:
        counts = json.loads(companion(path, "launches").read_text())
    except (OSError, ValueError):
        return {}
    return counts if isinstance(counts, dict) else {}


@dataclass(frozen=True)
class Content:
    """What a folder holds, for the fingerprint: equal hashes, equal names and bytes."""

    hash: str
    files: int
    size: int  # bytes


def content_of(folder: Path) -> Content:
    """The content of a folder. Beyond 20 GiB files count by name and size alone."""
    digest = hashlib.sha256()
    files = size = 0
    root = os.fsencode(folder)
    for path, about in sorted(walk(root)):
        name = path[len(root) :]
        digest.update(b"%d %s\0%d\0" % (stat.S_IFMT(about.st_mode), name, len(name)))
        if stat.S_ISLNK(about.st_mode):
            digest.update(_link(path))
        elif stat.S_ISREG(about.st_mode):
            files, size = files + 1, size + about.st_size
            digest.update(b"%d\0" % about.st_size)
            if size <= _HASH_LIMIT:
                _feed(digest, path, about.st_size)
    return Content(digest.hexdigest(), files, size)


def _link(path: bytes) -> bytes:
    try:
        return os.readlink(path)  # noqa: PTH115  a name in bytes
    except OSError:
        return b""


def _feed(digest: hashlib._Hash, path: bytes, size: int) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(file, "rb") as stream:
        while size > 0 and (block := stream.read(min(_BLOCK, size))):
            size -= len(block)
            digest.update(block)


def copy_files(source: Path, into: Path) -> None:
    """Copies the regular files below a folder, bytes and names only; links and everything else are left out.

    `into` may be a stranger's, too: a link in the place of a folder is replaced, not followed.
    """
    into.mkdir(parents=True, exist_ok=True)
    root = os.fsencode(source)
    for path, about in sorted(walk(root)):
        target = Path(os.fsdecode(os.fsencode(into) + path[len(root) :]))
        if stat.S_ISDIR(about.st_mode):
            if target.is_symlink() or not target.is_dir():
                target.unlink(missing_ok=True)
                target.mkdir()
        elif stat.S_ISREG(about.st_mode):
            _copy(path, target)


def _copy(path: bytes, target: Path) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PerfgateError(f"cannot be read: {error.strerror}", where=os.fsdecode(path)) from error
    with os.fdopen(file, "rb") as stream, target.open("xb") as copy:
        shutil.copyfileobj(stream, copy)
