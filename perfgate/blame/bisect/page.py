"""The answer of a bisect as one page without scripts, and as Markdown for a comment.

The picture is the posterior: a bar for each commit in the order of history, as high as it is likely to be the one, and
below it what was measured at that commit.
"""

from __future__ import annotations

import base64
import hashlib
import math

from markupsafe import Markup

from perfgate.blame.bisect.loop import Bisected
from perfgate.blame.bisect.search import Kind, SearchFinding
from perfgate.blame.bisect.told import answers, change, probabilities, sentences
from perfgate.report.escape import code, plain
from perfgate.report.svg import Drawing
from perfgate.text import visible

WIDTH, HEIGHT, FOOT = 960.0, 180.0, 26.0
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "body{color:#1c1c1c;background:#fff}"
    "svg{max-width:100%;height:auto}.bar{fill:#6b8fb5}.named{fill:#b5482f}.slow{fill:#b5482f}.fast{fill:#3f7d58}"
    ".skipped{fill:#999}.label{font-size:12px;fill:#555}table{border-collapse:collapse}"
    "td,th{padding:.2rem .7rem;text-align:left}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}.label{fill:#aaa}}"
)


def picture(found: Bisected) -> Markup:
    """The posterior over the commits."""
    likely, measured = probabilities(found), answers(found)
    named = {one.newer for one in found.findings if one.kind is Kind.NAMED}
    step = WIDTH / len(found.line)
    drawing = Drawing(
        "posterior",
        WIDTH,
        HEIGHT + FOOT,
        "Which commit it is",
        "One bar for each commit, oldest first, as high as it is likely to be the one; below, what was measured there.",
    )
    for at, position in enumerate(found.line):
        tip = f"{position.commit.sha[:12]} {position.commit.title}: {100 * likely.get(position.commit.sha, 0.0):.1f} %"
        high = (HEIGHT - 20) * likely.get(position.commit.sha, 0.0)
        css = "named" if at in named else "bar"
        drawing.box(at * step + step * 0.1, HEIGHT - high - 1, step * 0.8, high + 1, css, tip)
        place = (at + 0.5) * step
        if at in found.broken:
            drawing.diamond(place, HEIGHT + 12, 4, "skipped", f"{tip}; does not build or serve")
        elif at in measured:
            word = "as slow as bad" if measured[at] else "as fast as good"
            drawing.circle(place, HEIGHT + 12, 4, "slow" if measured[at] else "fast", f"{tip}; {word}")
    return drawing.markup()


def page(found: Bisected) -> str:
    style_hash = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
    rows = Markup("").join(
        Markup("<tr><td><code>{}</code></td><td><code>{}</code></td><td>{}</td><td>{}</td></tr>").format(
            found.line[one.step.older].commit.sha[:12],
            found.line[one.step.newer].commit.sha[:12],
            one.step.why.value,
            "does not build or serve" if one.slowdown is None else change(one.slowdown, found),
        )
        for one in found.measured
    )
    return str(
        Markup(
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{hash}'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>perfgate bisect</title>\n'
            "<style>{style}</style>\n</head>\n<body>\n<h1>Which commit made it slower</h1>\n{words}\n{picture}\n"
            "<p>● measured: red as slow as bad, green as fast as good; ◆ skipped.</p>\n"
            "<h2>What was measured</h2>\n<table><tr><th>older</th><th>newer</th><th>why</th>"
            "<th>newer against older</th></tr>{rows}</table>\n</body>\n</html>\n"
        ).format(
            hash=style_hash,
            style=Markup(STYLE),
            words=Markup("").join(Markup("<p>{}</p>").format(visible(one)) for one in sentences(found)),
            picture=picture(found),
            rows=rows,
        )
    )


def comment(found: Bisected) -> str:
    """The part of a comment: the measured culprit, or the range."""
    lines = [_told(one, found) for one in found.findings if one.kind is not Kind.SMALL]
    lines.append(f"{found.launches} launches in {math.ceil(found.minutes)} minutes.")
    return "\n\n".join(lines) + "\n"


def _told(one: SearchFinding, found: Bisected) -> str:
    size = f"{change(one.slowdown, found)} {found.asked.metric} of {plain(found.asked.recipe, 60)}"
    newer = found.line[one.newer].commit
    if one.kind is Kind.NAMED:
        return f"**Measured culprit:** {code(newer.sha)} {plain(newer.title, 120)} – {size}, against its parent"
    if one.kind is Kind.RANGE:
        older = found.line[min(one.older + 1, one.newer)].commit
        return f"**One of {one.newer - one.older} commits,** {code(older.sha[:12])} to {code(newer.sha[:12])} – {size}"
    return f"**No culprit:** {plain(next(iter(sentences(found))), 400)}"
