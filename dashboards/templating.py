"""Templates: escaped everywhere, in the reader's language, with numbers as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from thunder_tune.dashboards import formatting, languages, views

FOLDER = Path(__file__).parent


def study_path(name: str, *rest: object) -> str:
    """Return the address of a study's page, or of one below it."""
    parts = [name, *map(str, rest)]
    return "/studies/" + "/".join(quote(p, safe="", errors="replace") for p in parts)


def query(**values: object) -> str:
    """Write a query string, without what is empty."""
    kept = {k: v for k, v in values.items() if v not in ("", None, False)}
    return f"?{urlencode(kept, errors='replace')}" if kept else "?"


def render(template: str, language: str, **values: Any) -> str:  # noqa: ANN401
    """Fill in a template."""
    found = _environment.get_template(template)
    return found.render(_=languages.translator(language), language=language, **values)


def warm() -> None:
    """Compile all templates, so that no first page waits for its own."""
    for name in _environment.list_templates(extensions=["html"]):
        _environment.get_template(name)


def text_of(file: str) -> str:
    """Return a static file, for pages that carry it inside."""
    return (FOLDER / "static" / file).read_text(encoding="utf-8")


_environment = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    ms=formatting.milliseconds,
    interval=formatting.interval,
    seconds=formatting.seconds,
    memory=formatting.memory,
    ratio=formatting.ratio,
    speedup=formatting.speedup,
    percent=formatting.percent,
    moment=formatting.moment,
)
_environment.globals.update(study_path=study_path, query=query, fused=views.fused)
