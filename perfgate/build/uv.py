"""What is asked of uv, and the environment it is asked in."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from perfgate.build.failures import Refused, side_failure
from perfgate.text import visible

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

INDEX_VARIABLES = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY"),
    *("UV_TORCH_BACKEND", "UV_EXCLUDE_NEWER"),
)
PASSED = (
    *INDEX_VARIABLES,
    *("UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_OFFLINE", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "UV_PYTHON_DOWNLOADS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "RUSTUP_HOME"),
)
"""All that a build gets of the surroundings. An allow-list: tokens are not on it."""

_WITH_PASSWORD = re.compile(r"://[^/\s]*@")


def passed(surroundings: Mapping[str, str]) -> dict[str, str]:
    """What a build may see of the surroundings. An address with a user or password in it is left out."""
    found = {name: surroundings[name] for name in PASSED if surroundings.get(name)}
    return {name: value for name, value in found.items() if not _WITH_PASSWORD.search(value)}


def index_settings(variables: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={variables[name]}" for name in INDEX_VARIABLES if name in variables)


def find_links(wheels: Sequence[Path], given: Mapping[str, str]) -> tuple[str, ...]:
    """Folders and addresses with wheels: the box's own, then those of UV_FIND_LINKS, which `--find-links` overrides."""
    links = re.split(r"[,\s]+", given.get("UV_FIND_LINKS", ""))
    return (*map(str, wheels), *(link for link in links if link))


def local_folders(links: Sequence[str]) -> tuple[Path, ...]:
    return tuple(Path(link) for link in links if link.startswith("/") and Path(link).is_dir())


@dataclass(frozen=True, kw_only=True)
class Uv:
    """Commands of uv, none of which reads a configuration file or runs anything of the packages it installs.

    `sources`: packages without a wheel may be built: that runs their code.
    """

    venv: Path
    links: Sequence[str] = ()
    sources: bool = False

    @property
    def binary(self) -> Path:
        return Path(find_uv_bin())

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def make_venv(self, python: str, venv: Path | None = None) -> list[str]:
        return [str(self.binary), "venv", "--no-config", "--no-project", "--python", python, str(venv or self.venv)]

    def resolve(self, wanted: Path, resolution: Path) -> list[str]:
        """Chooses versions; those already in `resolution` are kept where the requirements allow it."""
        plain = ("--no-header", "--no-annotate", "--quiet")
        return [*self._pip("compile"), *plain, "--output-file", str(resolution), str(wanted)]

    def check_wheels(self, resolution: Path, found: Path) -> list[str]:
        """Fails where a chosen version has no wheel, and says which; looks at nothing that it needs in turn."""
        return [*self._pip("compile"), "--no-deps", "--no-header", "--output-file", str(found), str(resolution)]

    def install(self, resolution: Path, prefix: Path | None = None) -> list[str]:
        """`prefix`: a folder laid out like the environment, to be filled in its stead."""
        where = [] if prefix is None else ["--prefix", str(prefix)]
        return [*self._pip("install"), "--no-deps", *where, "-r", str(resolution)]

    def install_wheel(self, wheel: Path, *where: str) -> list[str]:
        """`where`: `--prefix` or `--target` and a folder, to be filled in the environment's stead."""
        return [*self._pip("install"), "--no-deps", "--offline", *where, str(wheel)]

    def install_tools(self, wanted: Path, constraint: Path) -> list[str]:
        return [*self._pip("install"), "--constraint", str(constraint), "-r", str(wanted)]

    def build_wheel(self, project: Path, out: Path, settings: Sequence[str]) -> list[str]:
        options = [part for setting in settings for part in ("--config-setting", setting)]
        return [
            *(str(self.binary), "build", "--no-config", "--wheel", "--no-build-isolation", "--offline"),
            *("--python", str(self.python), "--out-dir", str(out), *options, "--", str(project)),
        ]

    def _pip(self, verb: str) -> list[str]:
        links = [part for link in self.links for part in ("--find-links", link)]
        only = [] if self.sources else ["--only-binary", ":all:"]
        plain = ("--no-config", "--no-sources")  # no settings of ours, nor where a project says its packages lie
        return [str(self.binary), "pip", verb, *plain, "--python", str(self.python), *only, *links]


def environment(
    scratch: Path, cache: Path, tools: Sequence[str], given: Mapping[str, str], *, linked: bool = False
) -> dict[str, str]:
    """The whole environment of a build's commands.

    Copies, not hard links: who can write one copy reaches no other. But `linked` where cache and copy are one
    stranger's, and both are thrown away.
    """
    return {
        **{name: value for name, value in given.items() if name != "UV_FIND_LINKS"},
        "PATH": ":".join([*tools, SYSTEM_PATH]),
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "UV_CACHE_DIR": str(cache),
        "UV_LINK_MODE": "hardlink" if linked else "copy",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_PREFERENCE": "system",
        "PYTHONNOUSERSITE": "1",
    }


def requirement_lines(requirements: Iterable[str]) -> str:
    """Requirements as a file for uv. Refused where one would be more than its own line: an option, another file."""
    lines = tuple(requirements)
    for line in lines:
        if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in line) or line.endswith("\\"):
            raise Refused(side_failure(f"not a requirement: {visible(line, 80)!r}"))
    return "".join(f"{line}\n" for line in lines)


def with_address(requirement: str) -> bool:
    """Whether a requirement says itself where it is to be had: git or a file of somebody's, not an index."""
    try:
        return Requirement(requirement).url is not None
    except (InvalidRequirement, RecursionError):
        return True


def lines_of(resolution: str) -> tuple[str, ...]:
    return tuple(line for line in resolution.splitlines() if line.strip() and not line.lstrip().startswith("#"))


_NO_WHEEL = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)`")


def without_wheels(said: str) -> frozenset[str]:
    """The packages that uv would have had to build, by what it said."""
    return frozenset(canonicalize_name(name) for name in _NO_WHEEL.findall(said))


_SAME_VERSION = re.compile(r"\{([A-Za-z0-9._-]+)\}")


def says_same_version(requirement: str) -> bool:
    """`name=={other}`: in the version that `other` has."""
    return _SAME_VERSION.search(requirement) is not None


def with_versions(requirement: str, resolution: str) -> str:
    """A requirement with each `{other}` replaced by the version chosen for it; KeyError where there is none."""
    chosen = {}
    for line in lines_of(resolution):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line)
        if match:
            chosen[canonicalize_name(match[1])] = match[2]
    return _SAME_VERSION.sub(lambda match: chosen[canonicalize_name(match[1])].partition("+")[0], requirement)


def check_chosen(resolution: str, asked: Iterable[str]) -> None:
    """Refuses a choice of versions, made by a step that ran strangers' code, that holds anything else.

    Addresses are https alone, but for those that were asked for.
    """
    known = {Requirement(text).url for text in asked}
    for line in resolution.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        try:
            requirement = Requirement(line)
        except (InvalidRequirement, RecursionError) as error:
            raise Refused(side_failure(f"not a requirement: {visible(line, 80)!r}")) from error
        url = requirement.url
        if url is not None and url not in known and not url.startswith(("https://", "git+https://")):
            raise Refused(side_failure(f"{requirement.name} may only be had from an index or by https"))


def laid_over(resolution: str, over: Sequence[str], dropped: Sequence[str] = ()) -> str:
    """A resolution with some packages replaced by another pin. Those dropped are left out."""
    replaced = {_name(line) for line in over} | {canonicalize_name(name) for name in dropped}
    kept = [line for line in lines_of(resolution) if _name(line) not in replaced]
    return "".join(f"{line}\n" for line in (*kept, *over))


def split_off(resolution: str, names: Iterable[str]) -> tuple[str, str]:
    """Those lines of a resolution that speak of these packages or bring an address, and the others."""
    named = {canonicalize_name(name) for name in names}
    apart = [line for line in lines_of(resolution) if _name(line) in named or with_address(line)]
    rest = [line for line in lines_of(resolution) if line not in apart]
    return "".join(f"{line}\n" for line in apart), "".join(f"{line}\n" for line in rest)


def _name(line: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", line)
    return canonicalize_name(match[0]) if match else line
