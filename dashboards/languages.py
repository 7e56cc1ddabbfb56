"""The languages of pages: English is what is written in the code, others are dictionaries."""

from __future__ import annotations

from thunder_tune.dashboards.charts.drawing import Translate
from thunder_tune.dashboards.chinese import CHINESE

LANGUAGES = {"en": "English", "zh": "中文"}
DICTIONARIES: dict[str, dict[str, str]] = {"en": {}, "zh": CHINESE}


def translator(language: str) -> Translate:
    """Return what turns English words into a language; what is not in its dictionary stays."""
    words = DICTIONARIES.get(language, {})
    return lambda english: words.get(english, english)


def preferred(accept_language: str) -> str:
    """Return the first of our languages that a browser prefers, else English."""
    wanted = []
    for part in accept_language.split(",")[:20]:
        name, _semicolon, quality = part.partition(";")
        try:
            weight = float(quality.partition("=")[2] or 1.0)
        except ValueError:
            weight = 0.0
        wanted.append((-weight, name.strip().lower().partition("-")[0]))
    found = (name for weight, name in sorted(wanted) if name in LANGUAGES and weight < 0)
    return next(found, "en")
