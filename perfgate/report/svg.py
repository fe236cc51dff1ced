"""Small drawings for the page: plain SVG without scripts, styles or anything from outside.

Colours come from classes of the page's style sheet, so that they follow light and dark. Every drawing says in a title
and a description what it shows; shapes and labels carry the meaning, colour only helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from perfgate.text import visible


def number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


@dataclass
class Drawing:
    """Collects shapes. `name` makes the ids of title and description unique on the page."""

    name: str
    width: float
    height: float
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)

    def shape(self, tag: str, css: str, tip: str = "", **attributes: float | str) -> None:
        """One element. `tip` is shown where a pointer rests on it, and read out."""
        written = " ".join(
            f'{name.replace("_", "-")}="{escape(value if isinstance(value, str) else number(value))}"'
            for name, value in attributes.items()
        )
        inner = f"<title>{escape(visible(tip, 200))}</title>" if tip else ""
        self._parts.append(f'<{tag} class="{escape(css)}" {written}>{inner}</{tag}>')

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str, tip: str = "") -> None:
        self.shape("line", css, tip, x1=x1, y1=y1, x2=x2, y2=y2)

    def box(self, x: float, y: float, width: float, height: float, css: str, tip: str = "") -> None:
        self.shape("rect", css, tip, x=x, y=y, width=max(width, 0), height=height)

    def text(self, x: float, y: float, text: str, css: str = "label", anchor: str = "start") -> None:
        shown = escape(visible(text, 80))
        self._parts.append(
            f'<text class="{escape(css)}" x="{number(x)}" y="{number(y)}" text-anchor="{escape(anchor)}">{shown}</text>'
        )

    def circle(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        self.shape("circle", css, tip, cx=x, cy=y, r=radius)

    def diamond(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
        self.shape("polygon", css, tip, points=" ".join(f"{number(a)},{number(b)}" for a, b in corners))

    def markup(self) -> Markup:
        ids = f"{self.name}-title {self.name}-desc"
        return Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}"'
            ' height="{height}" aria-labelledby="{ids}"><title id="{name}-title">{title}</title>'
            '<desc id="{name}-desc">{description}</desc>{parts}</svg>'
        ).format(
            width=number(self.width),
            height=number(self.height),
            ids=ids,
            name=self.name,
            title=visible(self.title, 200),
            description=visible(self.description, 600),
            parts=Markup("").join(Markup(part) for part in self._parts),
        )


@dataclass(frozen=True)
class Scale:
    """From values to places along an axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def scale_over(values: Sequence[float], start: float, end: float, margin: float = 0.06) -> Scale:
    """A scale that holds all values with some room beside them."""
    low, high = min(values), max(values)
    room = (high - low) * margin or abs(high) * 0.01 or 1.0
    return Scale(low - room, high + room, start, end)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values within a range: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return []
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= raw)
    first = math.ceil(low / step)
    return [step * index for index in range(first, first + 2 * about + 2) if step * index <= high]


def axis(drawing: Drawing, scale: Scale, top: float, bottom: float, say: Callable[[float], str]) -> None:
    """Thin lines at round values, each with its number below."""
    for value in ticks(scale.low, scale.high):
        drawing.line(scale(value), top, scale(value), bottom, "grid")
        drawing.text(scale(value), bottom + 16, say(value), "tick", "middle")
