"""Runs workflows for real: `act` on this machine, against the stand-in for GitHub, with a caller in another repository.

GitHub's own actions come from a registry that is not at hand; small ones of the same inputs stand in their place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.commands.init import GATE, WORKFLOW
from tests.e2e.hub.repositories import git
from tests.e2e.hub.runners import jobs_of
from tests.unit.github.workflows import ACTION, ROOT, caller, read

BIN = Path(sys.executable).parent
PASSED = (
    "PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "PIP_INDEX_URL",
)
LABELS = ("ubuntu-latest", "self-hosted", "gpu8")

CHECKOUT = """\
name: checkout
description: stands in for actions/checkout
inputs: {repository: {}, ref: {}, path: {default: "."}, persist-credentials: {}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {REPOSITORY: "${{ inputs.repository }}", REF: "${{ inputs.ref }}", FOLDER: "${{ inputs.path }}"}
      run: |
        rm -rf "$FOLDER" && git init -q "$FOLDER"
        git -C "$FOLDER" fetch -q --depth 1 "$GITHUB_SERVER_URL/$REPOSITORY.git" "$REF"
        git -C "$FOLDER" checkout -q FETCH_HEAD
"""
UPLOAD = """\
name: upload-artifact
description: stands in for actions/upload-artifact
inputs: {name: {}, path: {}, if-no-files-found: {}, overwrite: {}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {NAME: "${{ inputs.name }}", FILES: "${{ inputs.path }}"}
      run: mkdir -p "$E2E_ARTIFACTS/$GITHUB_RUN_ID" && "$E2E_PYTHON" "$E2E_SHIMS/upload.py"
"""
UPLOAD_PY = """\
import glob, os, pathlib, zipfile

place = pathlib.Path(os.environ["E2E_ARTIFACTS"], os.environ["GITHUB_RUN_ID"], os.environ["NAME"])
given = [pathlib.Path(path) for line in os.environ["FILES"].split() for path in glob.glob(line)]
files = [file for path in given for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
if files:
    root = os.path.commonpath([path.parent for path in given])
    with zipfile.ZipFile(place, "w") as archive:
        for file in files:
            archive.write(file, file.relative_to(root))
"""
DOWNLOAD = """\
name: download-artifact
description: stands in for actions/download-artifact
inputs: {name: {}, path: {}, skip-decompress: {}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {NAME: "${{ inputs.name }}", FOLDER: "${{ inputs.path }}"}
      run: mkdir -p "$FOLDER" && cp "$E2E_ARTIFACTS/$GITHUB_RUN_ID/$NAME" "$FOLDER/"
"""
SHIMS = {"actions/checkout": CHECKOUT, "actions/upload-artifact": UPLOAD}
SHIMS["actions/download-artifact"] = DOWNLOAD


@dataclass(frozen=True)
class Ran:
    """A workflow run as act saw it."""

    code: int
    log: str
    lines: tuple[Mapping[str, Any], ...]

    def job(self, name: str) -> str:
        """success, failure, or "" for a job that did not run."""
        ended = [line for line in self.lines if line.get("jobID") == name and "jobResult" in line]
        return str(ended[-1]["jobResult"]) if ended else ""


@dataclass
class Act:
    """One machine that is GitHub's runner and the box at once."""

    folder: Path
    server: str  # address of the stand-in
    api: str
    caller: Path  # checkout of the repository that uses perfgate, at its default branch
    venv: Path | None = None  # lent to the jobs instead of one made anew by each
    actor: str = "alice"
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def start(self, event: str, payload: object, run: int, token: str, **environment: str) -> subprocess.Popen[str]:
        """act on one event, in a session of its own. Give it to `finish`."""
        for name in ("home", "artifacts"):
            (self.folder / name).mkdir(exist_ok=True)
        file = self.folder / f"event-{run}.json"
        file.write_text(json.dumps(payload))
        values = {
            "GITHUB_API_URL": self.api,
            "GITHUB_SERVER_URL": self.server,
            "GITHUB_RUN_ID": str(run),
            "E2E_PYTHON": sys.executable,
            "E2E_ARTIFACTS": str(self.artifacts),
            "E2E_SHIMS": str(self.folder / "shims"),
            "UV_CACHE_DIR": _uv_cache(),
            "UV_PYTHON_DOWNLOADS": "never",
            "E2E_VENV": str(self.venv or ""),
            **self.extra,
            **environment,
        }
        shims = [part for name, use in self._shims() for part in ("--local-repository", f"{use}={name}")]
        command = [
            *(str(BIN / "act"), event, "-W", ".github/workflows/perfgate.yml", "-e", str(file), "-a", self.actor),
            *(part for label in LABELS for part in ("-P", f"{label}=-self-hosted")),
            *("--no-cache-server", "--no-skip-checkout", "--json", "-s", f"GITHUB_TOKEN={token}"),
            *(part for name, value in values.items() for part in ("--env", f"{name}={value}")),
            *shims,
        ]
        own = {name: os.environ[name] for name in PASSED if name in os.environ}
        return subprocess.Popen(
            command,
            cwd=self.caller,
            env={**own, "HOME": str(self.folder / "home")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, event: str, payload: object, run: int, token: str, **environment: str) -> Ran:
        return finish(self.start(event, payload, run, token, **environment))

    def _shims(self) -> list[tuple[Path, str]]:
        """Folder of each stand-in, and the pinned action it stands for."""
        used = set(re.findall(r"uses: (actions/[\w-]+@[0-9a-f]{40})", caller(private=False).gate()))
        made = []
        for use in sorted(used):
            folder = self.folder / "shims" / use.split("@")[0]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "action.yml").write_text(SHIMS[use.split("@")[0]])
            made.append((folder, use))
        (self.folder / "shims" / "upload.py").write_text(UPLOAD_PY)
        return made


def finish(process: subprocess.Popen[str], timeout_s: float = 240.0) -> Ran:
    """Waits; whatever happens, nothing of it is left running."""
    try:
        log, _ = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ran(process.returncode, log, tuple(_json_lines(log)))


def _json_lines(log: str) -> list[dict[str, Any]]:
    lines = []
    for line in log.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            lines.append(data)
    return lines


def _uv_cache() -> str:
    return subprocess.run([BIN / "uv", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()


# ------------------------------------------------------------------------------------------------ repositories


LENT = """\
        if [ -n "$E2E_VENV" ]; then # made once, with the commands below, then lent to every job of every test
          ln -sfn "$E2E_VENV" "$RUNNER_TEMP/perfgate"
          echo "perfgate=$RUNNER_TEMP/perfgate/bin/perfgate" >> "$GITHUB_OUTPUT"
          exit 0
        fi
"""
PACE = (("between_requests_s: float = 0.25", "between_requests_s: float = 0.0"),)
PACE += (("between_writes_s: float = 1.0", "between_writes_s: float = 0.0"),)


def perfgate_repository(folder: Path, changes: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """A bare repository with perfgate as it is in this work tree, and its SHA. `changes`: files laid over it.

    Two things always differ: it does not spare GitHub's rate between calls, and an environment can be lent to it.
    """
    work = folder / "perfgate"
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/", "docs/")):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, work / name)
    for name, text in (changes or {}).items():
        (work / name).write_text(text)
    client = work / "perfgate/github/client.py"
    for old, new in PACE:
        assert old in client.read_text()
        client.write_text(client.read_text().replace(old, new))
    action = work / "action.yml"
    begin = "        # perfgate from this very checkout"
    assert begin in action.read_text()
    action.write_text(action.read_text().replace(begin, LENT + begin))
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "perfgate")
    bare = folder / "perfgate.git"
    git(folder, "clone", "-q", "--bare", str(work), str(bare))
    return bare, git(work, "rev-parse", "HEAD")


def installed(folder: Path, bare: Path) -> Path:
    """A virtual environment with that perfgate, made by the very commands of action.yml."""
    source, temporary = folder / "source", folder / "temp"
    git(folder, "clone", "-q", str(bare), str(source))
    temporary.mkdir()
    (script,) = [step["run"] for step in read(ACTION)["runs"]["steps"] if step.get("id") == "install"]
    environment = {
        **{name: os.environ[name] for name in PASSED if name in os.environ},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(folder),
        "UV_CACHE_DIR": _uv_cache(),
        "RUNNER_TEMP": str(temporary),
        "GITHUB_ACTION_PATH": str(source),
        "GITHUB_OUTPUT": str(folder / "output"),
    }
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], env=environment, check=True)
    return temporary / "perfgate"


def caller_files(ref: str, config: str) -> dict[str, str]:
    """What a repository that uses perfgate has in its default branch. The box is within its reach."""
    made = caller(private=False, ref=ref)
    files = {str(WORKFLOW): made.workflow(), str(GATE): made.gate()}
    assert all(job.gets_runner for job in jobs_of("sgl-project/sglang", files, str(WORKFLOW), {}))
    return {**files, ".github/perfgate.yml": config}


def artifact(place: Path, files: Mapping[str, bytes]) -> None:
    """An artifact as the box would have left it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
