from __future__ import annotations

import json
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import fill
from thunder_tune.testing.sample_values import make_spec

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def stored(own_folder: Path) -> None:
    database = Database.open()
    fill(database)
    database.create_study(make_spec("a b@8 ../x".replace("/", "_")))
    database.close()


@pytest.mark.usefixtures("stored")
def test_html_is_written_beside_you(own_folder: Path, capsys):
    assert run(["report", "vit"]) == 0
    assert "report: vit.report.html" in capsys.readouterr().err
    text = (own_folder / "vit.report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "<svg" in text


@pytest.mark.usefixtures("stored")
def test_a_name_with_odd_characters_stays_in_the_folder(own_folder: Path):
    assert run(["report", "a b@8 .._x", "--html", "--language", "zh"]) == 0
    assert [f.name for f in own_folder.glob("*.html")] == ["a_b_8_.._x.report.html"]


@pytest.mark.usefixtures("stored")
def test_markdown_and_json_are_printed(capsys):
    assert run(["report", "vit", "--md"]) == 0
    assert capsys.readouterr().out.startswith("# vit: done")
    assert run(["report", "vit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["study"]["name"] == "vit"


@pytest.mark.usefixtures("stored")
def test_any_form_can_be_written_to_a_file(own_folder: Path, capsys):
    for form, begins in (("--md", "# vit"), ("--json", '{"study"'), ("--html", "<!doctype")):
        assert run(["report", "vit", form, "--out", "x"]) == 0
        assert capsys.readouterr().out == ""
        assert (own_folder / "x").read_text("utf-8").startswith(begins)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "study 'nope' does not exist"),
        (["vit", "--md", "--html"], "give one of them"),
        (["vit", "--language", "de"], "unknown language 'de': use en or zh"),
        (["vit", "--out", "missing/x.html"], "cannot write report missing/x.html"),
    ],
)
def test_wrong_words_are_told_in_one_line(capsys, words: list[str], said: str):
    assert run(["report", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--token", "short"], "at least 16 characters"),
        (["--host", "192.0.2.1"], "cannot serve at 192.0.2.1:8484"),
        (["--port", "65536"], "less than or equal to 65535"),
        (["--storage", "nowhere/x/y.db"], "y.db"),
    ],
)
def test_a_dashboard_that_cannot_start_says_why(capsys, words: list[str], said: str):
    assert run(["dashboard", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
