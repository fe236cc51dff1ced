"""Small git repositories laid out like SGLang's, as a hub serves them: bare, with refs/pull/N/head."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "A Contributor",
    "GIT_AUTHOR_EMAIL": "contributor@example.org",
    "GIT_COMMITTER_NAME": "A Contributor",
    "GIT_COMMITTER_EMAIL": "contributor@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}
MODELS = "recipes: {baseline: {model: m}, eagle3: {model: m, draft: d}}\n"
START = {
    "python/sglang/__init__.py": "",
    "python/pyproject.toml": "[project]\nname = 'sglang'\n",
    ".github/perfgate.yml": MODELS,
}


def git(where: Path, *arguments: str) -> str:
    environment = {**os.environ, **ENVIRONMENT}
    command = ["git", "-C", str(where), *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


class Upstream:
    """A work tree in which commits are made, and the bare repository that the hub serves."""

    def __init__(self, folder: Path, start: Path | None = None) -> None:
        self.work, self.bare = folder / "work", folder / "bare.git"
        if start is not None:
            shutil.copytree(start, self.work, symlinks=True)
            git(self.work, "checkout", "-q", "main")
        else:
            self.work.mkdir(parents=True)
            git(self.work, "init", "-q", "-b", "main")
            self.commit(START, "Base")
        git(folder, "init", "-q", "--bare", "-b", "main", str(self.bare))
        git(self.work, "remote", "add", "hub", str(self.bare))
        self.push("main")

    @classmethod
    def copy(cls, template: Path, folder: Path) -> Upstream:
        """Another one like the one in the folder `template`; quicker than making it anew."""
        made = cls.__new__(cls)
        shutil.copytree(template, folder, symlinks=True)
        made.work, made.bare = folder / "work", folder / "bare.git"
        git(made.work, "remote", "set-url", "hub", str(made.bare))
        return made

    def commit(self, files: Mapping[str, str | None], title: str) -> str:
        """A commit on the branch checked out (path → text, None removes)."""
        for name, text in files.items():
            path = self.work / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        git(self.work, "add", "-A")
        git(self.work, "commit", "-q", "--allow-empty", "-m", title)
        return git(self.work, "rev-parse", "HEAD")

    def branch(self, name: str, files: Mapping[str, str | None], title: str = "A change", start: str = "main") -> str:
        """A branch with one commit on top of `start`; pushed nowhere yet."""
        git(self.work, "checkout", "-q", "-B", name, start)
        sha = self.commit(files, title)
        git(self.work, "checkout", "-q", "main")
        return sha

    def orphan(self, files: Mapping[str, str | None]) -> str:
        """A commit with no parent."""
        git(self.work, "checkout", "-q", "--orphan", "orphan")
        sha = self.commit(files, "Out of nothing")
        git(self.work, "checkout", "-q", "main")
        return sha

    def push(self, ref: str, to: str | None = None) -> None:
        git(self.work, "push", "-q", "--force", "hub", f"{ref}:{to or f'refs/heads/{ref}'}")

    def push_pull(self, number: int, sha: str) -> None:
        """A pull request's head, as GitHub keeps it in the repository it goes to."""
        self.push(sha, f"refs/pull/{number}/head")

    def sha(self, name: str) -> str:
        return git(self.work, "rev-parse", name)

    def tree(self, sha: str) -> str:
        return git(self.work, "rev-parse", f"{sha}^{{tree}}")
