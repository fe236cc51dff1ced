"""A checkout with a past at set dates, and the logs that were written beside it."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

CLONED = "2026-02-20T09:00:00+0100"
PULLED = "2026-02-25T17:50:00+0100"
SUBJECTS = (
    "Fix PCG MoE Error (#17739)",
    "FlashInfer selective_state_update for Mamba (#18070)",
    "Refactor the radix tree (#18100)",
    "Docs: supported models",
    "Bump the router",
    "A test for the tokenizer",
    "CI: another runner",
)
FILES = ("layers/moe/gate.py", "layers/mamba.py", "mem_cache/radix.py", "docs.py", "router.py", "tokens.py", "ci.py")


class Stage:
    """`upstream` has seven commits more than were cloned; `checkout` was cloned before them and is not yet pulled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upstream = folder / "upstream"
        self.checkout = folder / "sglang"

    def build(self) -> None:
        self.upstream.mkdir(parents=True)
        self.git("2026-02-18T12:00:00+0100", "init", "-q", "-b", "main", at=self.upstream)
        self.commit("2026-02-19T12:00:00+0100", "The old base", {"python/sglang/srt/a.py": "1\n"}, at=self.upstream)
        self.git("2026-02-19T12:00:00+0100", "tag", "v0.5.9", at=self.upstream)
        self.git(CLONED, "clone", "-q", str(self.upstream), str(self.checkout), at=self.folder)
        for number, (subject, name) in enumerate(zip(SUBJECTS, FILES, strict=True)):
            self.commit(
                f"2026-02-2{1 + number // 2}T1{number}:00:00+0100",
                subject,
                {f"python/sglang/srt/{name}": "1\n"},
                at=self.upstream,
            )

    def git(self, when: str, *arguments: str, at: Path | None = None) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_EDITOR": "true",
            **{f"GIT_{who}_{what}": "Somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            "GIT_AUTHOR_DATE": when,
            "GIT_COMMITTER_DATE": when,
        }
        done = subprocess.run(
            ["git", *arguments], cwd=at or self.checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout.strip()

    def commit(self, when: str, subject: str, files: dict[str, str], at: Path | None = None) -> str:
        where = at or self.checkout
        for name, text in files.items():
            path = where / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git(when, "add", "-A", at=where)
        self.git(when, "commit", "-q", "-m", subject, at=where)
        return self.head(where)

    def head(self, at: Path | None = None) -> str:
        return self.git(CLONED, "rev-parse", "HEAD", at=at)

    def pull(self, when: str = PULLED, at: Path | None = None) -> str:
        self.git(when, "pull", "-q", at=at)
        return self.head(at)

    def log(
        self,
        name: str,
        begin: str,
        end: str,
        *,
        zone: str = "+0100",
        mtime: str | None = "",
        stamps: str = "plain",
        tok_s: float = 89.0,
        first_lines: tuple[str, ...] = (),
        served: bool = True,
        append: bool = False,
    ) -> Path:
        """A server's log as SGLang writes it, from `begin` to `end` by a clock in `zone`.

        `mtime`: "" is its own (the last line's time), None leaves it as it is now, else an ISO time.
        """
        first, last = datetime.fromisoformat(begin), datetime.fromisoformat(end)
        step = max((last - first) / 12, timedelta(seconds=1))
        lines = [*first_lines]
        if served:
            lines.append(f"{_stamp(first, stamps, zone)}server_args=ServerArgs(model_path='m', tp_size=8)")
        lines.append(f"{_stamp(first, stamps, zone)}sglang is using nccl==2.27.5")
        time = first
        while time < last:
            time += step
            time = min(time, last)
            lines.append(
                f"{_stamp(time, stamps, zone)}Decode batch, #running-req: 1, #token: 186, token usage: 0.00, "
                f"accept len: 2.95, cuda graph: True, gen throughput (token/s): {tok_s:.2f}, #queue-req: 0, "
            )
        path = self.folder / name
        with path.open("a" if append else "w") as file:
            file.write("\n".join(lines) + "\n")
        if mtime is not None:
            seconds = datetime.fromisoformat(mtime or f"{end}{zone}").timestamp()
            os.utime(path, (seconds, seconds))
        return path


def _stamp(time: datetime, stamps: str, zone: str) -> str:
    match stamps:
        case "plain":
            return f"[{time:%Y-%m-%d %H:%M:%S}] "
        case "rank":
            return f"[{time:%Y-%m-%d %H:%M:%S} TP0] "
        case "zoned":
            return f"{time:%Y-%m-%dT%H:%M:%S}{zone} [{time:%Y-%m-%d %H:%M:%S}] "
        case "docker":  # the container's own clock is Greenwich's; docker -t says so
            return f"{time:%Y-%m-%dT%H:%M:%S}.123456789Z [{time:%Y-%m-%d %H:%M:%S}] "
        case _:
            return ""
