from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from thunder_tune.dashboards.templating import study_path
from thunder_tune.storage import Database
from thunder_tune.testing.sample_values import (
    make_description,
    make_recipe,
    make_result,
    make_setting,
    make_spec,
)

EVIL = "\"><img src=x onerror=alert(1)>'{{7*7}}"
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Checks what a content-security policy and a screen reader would complain about."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.in_label = 0
        self.feed(html)
        self.close()
        self.problems += [f"not closed: {tag}" for tag in self.open]
        self.problems += [f"id twice: {i}" for i in set(self.ids) if self.ids.count(i) > 1]

    def handle_starttag(self, tag: str, attrs) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.problems += [f"{tag} {a}" for a in given if a == "style" or a.startswith("on")]
        if tag == "script" and "src" not in given:
            self.problems.append("script inside")
        if (
            tag in ("input", "select")
            and given.get("type") != "hidden"
            and "label" not in self.open
        ):
            self.problems.append(f"{tag} without label")
        if tag == "th" and "scope" not in given:
            self.problems.append("th without scope")
        if "href" in given:
            self.links.append(given["href"] or "")
        if "id" in given:
            self.ids.append(given["id"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"closed out of order: {tag}")


def paths(database: Database) -> list[str]:
    found = ["/", "/?sort=speedup&descending=false", "/recipes", "/machines", "/compare"]
    for summary in database.studies():
        found += [
            study_path(summary.name),
            study_path(summary.name, "trials"),
            study_path(summary.name, "program"),
            *(
                study_path(summary.name, "trials", n)
                for n in range(database.count(summary.name)[0])
            ),
        ]
    for recipe in database.recipes():
        found.append(f"/recipes/{recipe.digest}")
        known = database.anatomy(recipe)
        texts = known.texts if known else ()
        found += [f"/recipes/{recipe.digest}/texts/{i}" for i in range(len(texts))]
    names = [s.name for s in database.studies()]
    return [*found, f"/compare?a={quote(names[0], safe='')}&b={quote(names[-1], safe='')}"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_sound_and_its_links_lead_somewhere(
    client: TestClient, filled: Database, language: str
):
    seen: set[str] = set()
    for path in paths(filled):
        answer = client.get(path, headers={"accept-language": language})
        assert answer.status_code == 200, path
        page = Page(answer.text)
        assert page.problems == [], path
        assert {"main", "h1", "title"} <= set(page.tags)
        assert page.tags.count("h1") == 1, path
        seen |= {link for link in page.links if link.startswith("/")}
    for link in sorted(seen):
        assert client.get(link).status_code == 200, link


@pytest.mark.parametrize("name", [EVIL, "長" * 200, "a?b#c&d=e%", " ", "'", "-rf", "a b+c"])
def test_names_are_shown_as_they_are(client: TestClient, database: Database, name: str):
    database.create_study(make_spec(name, setting=make_setting(name=EVIL)))
    database.add_trial(name, make_result(EVIL))
    database.add_trial(name, make_result(EVIL, role="baseline"))
    database.add_trial(name, make_result(EVIL, failure="crash"))
    database.save_recipe(name, make_recipe())
    for path in paths(database):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "<img" not in answer.text
        assert "49" not in re.findall(r"alert\(1\)&gt;&#39;(\d+)", answer.text)
        assert Page(answer.text).problems == [], path


def test_an_empty_database_says_how_to_begin(client: TestClient):
    for path in ("/", "/recipes", "/machines", "/compare"):
        assert 'class="empty"' in client.get(path).text
    assert "thunder-tune run --model" in client.get("/").text


def test_a_study_of_failures_alone_is_shown(client: TestClient, database: Database):
    database.create_study(make_spec())
    for _ in range(7):
        database.add_trial("study", make_result(failure="crash"))
    text = client.get("/studies/study").text
    assert "<strong>7×</strong>" in text
    assert "No measured trial yet." in text


def test_numbers_that_are_none_are_shown(client: TestClient, database: Database):
    database.create_study(make_spec())
    for value in (float("nan"), float("inf"), 1.0, 1e-9, 1e12):
        database.add_trial("study", make_result(latency_ms=value))
    assert client.get("/studies/study").status_code == 200
    assert "NaN" in client.get("/studies/study/trials/0").text
    assert "∞" in client.get("/studies/study/trials/1").text


def test_a_running_study_is_followed(client: TestClient, filled: Database):
    assert 'data-live="/api/studies/bert/events"' in client.get("/studies/bert").text
    assert "data-live" not in client.get("/studies/vit").text


def test_the_language_is_the_readers(client: TestClient, filled: Database):
    assert ">Studies</h1>" in client.get("/").text
    assert ">研究</h1>" in client.get("/", headers={"accept-language": "de, zh-CN;q=0.8"}).text
    assert ">研究</h1>" in client.get("/?lang=zh").text
    assert ">研究</h1>" in client.get("/").text  # remembered
    assert ">Studies</h1>" in client.get("/?lang=en").text


def test_problems_are_pages(client: TestClient, filled: Database):
    missing = client.get("/studies/vitt")
    assert missing.status_code == 404
    assert "did you mean" in missing.text
    assert client.get("/studies/vit/trials/x").status_code == 422
    assert Page(missing.text).problems == []


def test_a_damaged_database_is_a_problem_not_a_crash(
    client: TestClient, database: Database, tmp_path: Path
):
    database.close()  # its connections keep the old file
    (tmp_path / "tt.db").write_bytes(b"not a database at all" * 500)
    for leftover in tmp_path.glob("tt.db-*"):
        leftover.unlink()
    assert client.get("/api/studies").status_code == 503
    assert client.get("/").status_code == 503


def test_studies_are_filtered_without_scripts(client: TestClient, filled: Database):
    text = client.get("/?text=VIT").text
    assert "/studies/vit" in text
    assert "/studies/bert" not in text


def test_a_difference_to_another_trial_is_shown(client: TestClient, filled: Database):
    text = client.get("/studies/vit/trials/4?against=0").text
    assert "executor:linear-00000000" in text
    assert "No difference." in client.get("/studies/vit/trials/4?against=4").text
    assert client.get("/studies/vit/trials/4?against=999").status_code == 404


def test_a_downloaded_recipe_can_be_loaded(client: TestClient, filled: Database, tmp_path: Path):
    from thunder_tune.recipes import read_recipe

    (recipe,) = filled.recipes()
    answer = client.get(f"/recipes/{recipe.digest}/download")
    assert answer.headers["content-disposition"].endswith(f'"{recipe.digest}.recipe.json"')
    file = tmp_path / "x.recipe.json"
    file.write_bytes(answer.content)
    assert read_recipe(file) == recipe


def test_the_code_of_a_region_is_one_click_away(client: TestClient, filled: Database):
    (recipe,) = filled.recipes()
    place = f"/recipes/{recipe.digest}/texts/1"
    assert f'href="{place}?shape=0"' in client.get("/studies/vit/program").text
    assert "async_compile.triton" in client.get(place).text
    assert client.get(f"/recipes/{recipe.digest}/texts/2").status_code == 404
    assert client.get(place, params={"shape": 1}).status_code == 404


def test_a_program_that_was_not_measured_says_how(client: TestClient, database: Database):
    database.create_study(make_spec("a b"))
    database.save_description("a b", make_description())
    database.save_recipe("a b", make_recipe())
    text = client.get("/studies/a b/program").text
    assert "thunder-tune explain &#39;a b&#39; --trace --profile" in text


def test_a_study_whose_process_is_dead_says_so(client: TestClient, filled: Database):
    for _ in range(3):
        filled.add_trial("bert", make_result())
    text = client.get("/studies/bert").text
    assert "The process that ran this study is dead" in text
    assert "first to last result" in text  # no time left
