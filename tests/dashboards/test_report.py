from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from thunder_tune.dashboards import report
from thunder_tune.errors import NotFoundError
from thunder_tune.storage import Database
from thunder_tune.testing.sample_values import make_result, make_spec

EVIL = "a|b`<img src=x onerror=alert(1)>*_#"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_html_stands_alone(filled: Database, language: str):
    text = report.as_html(filled, "vit", language)
    assert text.count("<svg") == 5
    assert not re.search(r"<script|<link|\ssrc=|href=|url\(|@import", text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"style-src &#39;sha256-{digest}" in text or f"style-src 'sha256-{digest}" in text


def test_markdown_has_the_tables(filled: Database):
    text = report.as_markdown(filled, "vit")
    for title in ("Verdict", "Confirmed", "Importance of dimensions", "Failures by cause"):
        assert f"## {title}" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| ")}
    assert min(widths) >= 2
    assert "█" in text


def test_the_document_is_json(filled: Database):
    found = json.loads(json.dumps(report.as_document(filled, "vit"), allow_nan=False))
    assert len(found["trials"]) == 27
    assert found["study"]["name"] == "vit"
    assert {"comparison", "importance", "failures", "recipes"} <= found.keys()


def test_a_study_without_results_has_a_report(filled: Database):
    assert "No measured trial yet." in report.as_html(filled, "bert")
    assert report.as_markdown(filled, "bert").startswith("# bert: running")
    assert report.as_document(filled, "bert")["trials"] == []


def test_names_are_shown_as_they_are(database: Database):
    name = EVIL.replace("/", "")
    database.create_study(make_spec(name))
    for failure in (None, "crash"):
        database.add_trial(name, make_result(EVIL, failure=failure))
    assert "<img" not in report.as_html(database, name)
    text = report.as_markdown(database, name)
    assert "<img" not in text
    assert "a\\|b\\`&lt;img" in text


def test_an_unknown_study_is_named(database: Database):
    with pytest.raises(NotFoundError, match="study 'nope' does not exist"):
        report.as_html(database, "nope")
