"""Elements, scales and axes that all charts are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from thunder_tune.dashboards.formatting import significant

Translate = Callable[[str], str]

LARGEST, SMALLEST = 1e100, 1e-100
"""Beyond these a chart has no place for a number, which no measurement gives."""


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Make an element; text and attributes are escaped, a `Markup` child is not.

    Names of attributes are written with "_" for "-" and "class_" for "class"; None leaves one out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def _value(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def group(children: Iterable[str], **attributes: object) -> Markup:
    """Make a group of elements."""
    return tag("g", *children, **attributes)


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> Markup:
    """Place words; `anchor` is "start", "middle" or "end"."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=kind or None)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Draw a line of a class."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def link(target: str | None, *children: str) -> Markup:
    """Wrap elements in a link, or in a group where there is no target."""
    return tag("a", *children, href=target) if target else tag("g", *children)


def picture(width: float, height: float, title: str, *children: str) -> Markup:
    """Make a whole chart: `title` is what a screen reader says of it.

    Points that are links stay reachable, so it is a group, not an image.
    """
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="group",
        aria_label=title,
        class_="chart",
        xmlns="http://www.w3.org/2000/svg",
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping of values to places: linear, or logarithmic.

    Attributes:
        lo: Smallest value; above 0 where logarithmic.
        hi: Largest value, above `lo`.
        start: Place of `lo`.
        end: Place of `hi`.
        is_log: Whether equal ratios, not differences, are equally far apart.
    """

    lo: float
    hi: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; beyond the ends, the end."""
        value = min(max(value, self.lo), self.hi)
        if self.is_log:
            share = math.log(value / self.lo) / math.log(self.hi / self.lo)
        else:
            share = (value - self.lo) / (self.hi - self.lo)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round values inside, about so many."""
        if self.is_log:
            found = [
                m * 10.0**e
                for e in range(math.floor(math.log10(self.lo)), math.ceil(math.log10(self.hi)) + 1)
                for m in (1, 2, 5)
                if self.lo <= m * 10.0**e <= self.hi
            ]
            if 3 <= len(found) <= 2 * about:
                return found
            if len(found) > 2 * about:
                powers = found[next(i for i, v in enumerate(found) if _is_power(v)) :: 3]
                return powers[:: math.ceil(len(powers) / (2 * about))]
        step = nice((self.hi - self.lo) / about)
        first = math.ceil(self.lo / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.hi / step + 1e-9) + 1)]


def is_drawn(value: float) -> bool:
    """Tell whether a number has a place on a chart: neither NaN nor beyond all measure."""
    return abs(value) < LARGEST


def _is_power(value: float) -> bool:
    return abs(math.log10(value) - round(math.log10(value))) < 1e-9


def nice(step: float) -> float:
    """Return the next round step of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))


def scale(
    values: Sequence[float], start: float, end: float, *, pad: float = 0.05, log: bool = False
) -> Scale:
    """Return a scale over finite values with some room; of one value, around it.

    Args:
        values: What is not finite is ignored.
        start: Place of the smallest.
        end: Place of the largest.
        pad: Room on each side, share of the range.
        log: Logarithmic where all values are above 0.
    """
    known = [v if abs(v) > SMALLEST else 0.0 for v in values if is_drawn(v)] or [1.0]
    lo, hi = min(known), max(known)
    if log and lo > 0:
        room = (hi / lo) ** pad if hi > lo * (1 + 1e-9) else 1.25
        return Scale(lo / room, hi * room, start, end, is_log=True)
    room = pad * (hi - lo) if hi - lo > 1e-9 * max(abs(lo), abs(hi)) else abs(hi) * 0.1 or 1.0
    return Scale(lo - room, hi + room, start, end)


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> Markup:
    """Draw a grid with numbers, and what the axes mean."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    parts = []
    for value in y.ticks():
        parts.append(line(left, y(value), right, y(value), "grid"))
        parts.append(text(left - 8, y(value) + 4, plain(value), anchor="end", kind="tick"))
    for value in x.ticks(7):
        parts.append(line(x(value), bottom, x(value), bottom + 4, "axis"))
        parts.append(text(x(value), bottom + 18, plain(value), anchor="middle", kind="tick"))
    parts.append(line(left, bottom, right, bottom, "axis"))
    parts.append(text(right, bottom + 34, x_label, anchor="end", kind="label"))
    parts.append(text(left - 44, top - 10, y_label, kind="label"))
    return group(parts, aria_hidden="true")


def plain(value: float) -> str:
    """Write a tick's value as short as it can be."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    return significant(value, 2)
