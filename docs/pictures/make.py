"""Makes the pictures of the documentation from the golden run: the comment as GitHub shows it, and the page.

python docs/pictures/make.py        (needs Chromium, and the development tools of this repository)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cmarkgfm
from cmarkgfm.cmark import Options

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from perfgate.records.files import read_facts, read_result  # noqa: E402
from perfgate.report.comment import render_comment  # noqa: E402
from perfgate.report.page import render_page  # noqa: E402

RUN = HERE.parents[1] / "tests/fixtures/run-story"
LIKE_GITHUB = """
body { margin: 0; padding: 16px; background: #fff; color: #1f2328;
  font: 14px/1.5 -apple-system, "Segoe UI", "Noto Sans", "Liberation Sans", Helvetica, Arial, sans-serif; }
.comment { border: 1px solid #d1d9e0; border-radius: 6px; max-width: 900px; }
.who { background: #f6f8fa; border-bottom: 1px solid #d1d9e0; border-radius: 6px 6px 0 0; padding: 8px 16px; }
.who b { color: #1f2328; }
.bot { border: 1px solid #d1d9e0; border-radius: 2em; padding: 0 7px; font-size: 12px; margin: 0 4px; }
.body { padding: 16px; }
.body > :first-child { margin-top: 0; } .body > :last-child { margin-bottom: 0; }
h3 { font-size: 17.5px; line-height: 1.25; margin: 24px 0 16px; }
p, ul, table, details { margin: 0 0 14px; }
ul { padding-left: 2em; }
table { border-collapse: collapse; font-size: 14px; } th, td { border: 1px solid #d1d9e0; padding: 6px 13px; }
tr:nth-child(2n) td { background: #f6f8fa; }
code { background: #818b981f; border-radius: 6px; padding: .2em .4em; font: 85% "Liberation Mono", monospace; }
summary { cursor: pointer; }
"""
QUIETLY = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"]
QUIETLY += ["--disable-background-networking", "--disable-component-update", "--disable-quic"]


def main() -> None:
    markdown = render_comment(read_result(RUN))
    body = cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE)
    head = '<div class="who"><b>github-actions</b> <span class="bot">bot</span> commented</div>'
    comment = f'<div class="comment">{head}<div class="body">{body}</div></div>'
    html = f'<meta charset="utf-8"><style>{LIKE_GITHUB}</style>{comment}'
    picture(html, HERE / "comment.png", 934, 612)
    picture(render_page(read_result(RUN), read_facts(RUN)), HERE / "page.png", 1000, 1180)


def picture(html: str, to: Path, width: int, height: int) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or "google-chrome"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.html"
        source.write_text(html, encoding="utf-8")
        subprocess.run(
            [
                chromium,
                *QUIETLY,
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={to}",
                source.as_uri(),
            ],
            check=True,
            capture_output=True,
        )
    print(f"{to.name}: {to.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
