"""Git as a subprocess, on a repository that strangers had a hand in.

Only plumbing that reads objects is used, never a work tree, an index or a checkout: no filter, attribute, hook, pager,
external diff or credential helper has an occasion to run. The rest is shut all the same: no configuration but the
repository's own, no replaced objects, no network (a partial clone must not fetch what it lacks in mid-run).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from perfgate.errors import PerfgateError

TIMEOUT_S = 300.0
"""A plumbing command over a repository of SGLang's size takes seconds."""

_SHUT = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.pager=cat",
    "core.alternateRefsCommand=true",
    "credential.helper=",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    "submodule.recurse=false",
    "advice.graftFileDeprecated=false",
    "fetch.recurseSubmodules=false",
)

_LACKING = re.compile(
    r"could not fetch [0-9a-f]+ from promisor|lazy fetching disabled|[Cc]ould not read [0-9a-f]{40}"
    r"|(bad|missing|unable to read) (tree|blob|object)|object [0-9a-f]+ is missing|not a tree object"
)

_ENVIRONMENT: Mapping[str, str] = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # the name of no protocol; older git ignores the variable above
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_ADVICE": "0",  # hints are for people at a terminal
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
}


class GitFailed(Exception):
    """A git command ended with an error; `text` is what it said."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)

    @property
    def line(self) -> str:
        """The line that says why: git's `fatal:` or `error:`, hints and warnings left aside."""
        lines = [line for line in self.text.splitlines() if line.strip() and not line.startswith("hint:")]
        serious = [line for line in lines if line.startswith(("fatal:", "error:"))]
        return next(iter((*serious, *lines)), f"exit code {self.code}")

    @property
    def lacks_objects(self) -> bool:
        """Whether an object is not there that a partial clone would fetch when it is asked for."""
        return _LACKING.search(self.text) is not None


def find_git_dir(path: Path) -> Path:
    """The git directory of a checkout, a linked work tree, a bare repository, or a folder inside one of them.

    Found here rather than by git: given outright, git asks neither who owns it nor what `safe.directory` says.
    """
    if not path.is_dir():
        raise PerfgateError("no such folder", where=str(path), remedy="give the checkout of SGLang as --repo")
    start = path.resolve()
    for folder in (start, *start.parents):
        found = _git_dir_at(folder)
        if found is not None:
            return found
    raise PerfgateError("not a git repository", where=str(path), remedy="give the checkout of SGLang as --repo")


def _git_dir_at(folder: Path) -> Path | None:
    dot_git = folder / ".git"
    if dot_git.is_file():
        target = _gitdir_file(dot_git)
        return target if target is not None and _is_git_dir(target) else None
    for candidate in (dot_git, folder):
        if _is_git_dir(candidate):
            return candidate
    return None


def _gitdir_file(path: Path) -> Path | None:
    """Where a `.git` file (linked work tree, submodule) points."""
    text = path.read_bytes()[:4096].decode("utf-8", "surrogateescape").strip()
    if not text.startswith("gitdir:"):
        return None
    return (path.parent / text.removeprefix("gitdir:").strip()).resolve()


def _is_git_dir(path: Path) -> bool:
    if not (path / "HEAD").is_file():
        return False
    return (path / "objects").is_dir() or (path / "commondir").is_file()


class Git:
    """Runs git on one git directory."""

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir

    def _argv(self, arguments: Sequence[str]) -> list[str]:
        shut = [part for setting in _SHUT for part in ("-c", setting)]
        return ["git", "--no-pager", "--no-replace-objects", f"--git-dir={self.git_dir}", *shut, *arguments]

    def _environment(self) -> dict[str, str]:
        return {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath)}

    def run(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        """Standard output of a command; GitFailed where git says no."""
        try:
            done = subprocess.run(
                self._argv(arguments),
                input=stdin if stdin is not None else b"",
                capture_output=True,
                env=self._environment(),
                cwd=self.git_dir,
                timeout=TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise PerfgateError("git is not installed", remedy="install git 2.30 or newer") from error
        except ValueError as error:  # a NUL byte in an argument
            raise GitFailed(128, str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise PerfgateError(
                f"git {arguments[0]} did not end within {TIMEOUT_S:.0f} s", where=str(self.git_dir)
            ) from error
        if done.returncode:
            raise GitFailed(done.returncode, done.stderr.decode("utf-8", "replace").strip())
        return done.stdout

    @contextmanager
    def stream(self, *arguments: str, stdin: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
        """Standard output of a command as it comes, to be read to its end; an error of git is GitFailed."""
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                self._argv(arguments),
                stdin=stdin if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(),
                cwd=self.git_dir,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                yield process.stdout
            except BaseException:
                process.kill()
                raise
            if process.wait(TIMEOUT_S):
                errors.seek(0)
                raise GitFailed(process.returncode, errors.read(65536).decode("utf-8", "replace").strip())
