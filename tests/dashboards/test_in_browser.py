"""A reader's path through the dashboard, in a real browser against a real server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import fill
from thunder_tune.testing.sample_values import make_result

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Database]:
    log = tmp_path / "data" / "thunder-tune" / "logs" / "vit" / "worker-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback\nRuntimeError: no kernel image\n")
    database = Database.open(str(tmp_path / "tt.db"))
    fill(database, log=str(log))
    yield database
    database.close()


@pytest.fixture
def address(stored: Database, tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "thunder_tune.cli", "dashboard", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--storage", stored.url],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")},
    )
    assert server.stderr is not None
    line = server.stderr.readline()
    found = re.search(r"http://\S+", line)
    assert found, line
    yield found.group().rstrip("/")
    ended = server.poll()
    server.send_signal(signal.SIGTERM)
    _out, said = server.communicate(timeout=60)
    assert ended is None, f"the server ended by itself with {ended}: {said}"


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in English on which any complaint of the browser is a failure."""
    context = browser.new_context(
        locale="en-US",
        viewport={"width": 1280, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
    )
    opened, complaints = context.new_page(), []
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    assert complaints == []
    context.close()


def test_a_reader_finds_what_won_and_what_failed(page: Any, address: str, tmp_path: Path):
    def shot(name: str) -> None:
        page.wait_for_load_state()
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)

    page.goto(address)
    page.get_by_role("searchbox").fill("vit")
    assert page.locator("#studies tbody tr:visible").count() == 1
    shot("studies")
    page.get_by_role("link", name="trials", exact=True).click()
    assert page.locator("th[aria-sort]").inner_text().strip() == "trials"
    page.get_by_role("link", name="vit", exact=True).click()
    shot("study")

    points = page.get_by_role("group", name="Latency against error of every trial").locator("a")
    points.last.hover()
    assert "ms" in page.locator("#tip").inner_text()
    points.last.click()
    page.wait_for_url("**/trials/*")
    assert page.get_by_role("heading", level=1).inner_text().startswith("Trial ")
    assert page.get_by_text("executor:linear-00000000").is_visible()
    shot("trial")

    page.go_back()
    page.locator("details.failure summary").first.click()
    assert page.get_by_text("RuntimeError: no kernel image").is_visible()
    page.locator("#more").get_by_role("link", name=re.compile("Recipe")).click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "thunder.compile(model, recipe=recipe)" in copied
    shot("recipe")

    page.get_by_role("link", name="中文").click()
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    page.get_by_role("link", name="研究", exact=True).click()
    assert page.get_by_role("heading", level=1).inner_text() == "研究"


def test_a_running_study_grows_on_the_page(page: Any, address: str, stored: Database):
    page.goto(f"{address}/studies/bert")
    page.get_by_text("0 / 100").wait_for()
    with page.expect_event("requestfinished", lambda r: r.url.endswith("/studies/bert")):
        stored.add_trial("bert", make_result())
    page.get_by_text("1 / 100").wait_for()


def test_a_study_is_cancelled_after_a_second_look(page: Any, address: str, stored: Database):
    page.goto(f"{address}/studies/bert")
    page.get_by_role("link", name="Cancel").click()
    assert stored.study("bert").state == "running"
    page.get_by_role("button", name="Cancel the study").click()
    page.wait_for_url("**/studies/bert")
    page.get_by_text("interrupted", exact=True).wait_for()
    assert stored.study("bert").state == "interrupted"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_serious_finding(browser: Any, address: str, stored: Database, scheme: str):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(color_scheme=scheme, locale="en-US", bypass_csp=True)
    page = context.new_page()
    paths = ["/", "/studies/vit", "/studies/bert", "/studies/vit/trials", "/studies/vit/trials/8"]
    paths += ["/studies/vit/trials/4", "/studies/vit/program", "/recipes", "/machines"]
    paths += ["/compare?a=vit&b=bert", "/nope", "/studies/bert/cancel"]
    (recipe,) = stored.recipes()
    paths += [f"/recipes/{recipe.digest}", f"/recipes/{recipe.digest}/texts/1"]
    found = []
    for path in paths:
        page.goto(address + path)
        for rule in Axe().run(page).response["violations"]:
            if rule["impact"] in ("serious", "critical"):
                found.append((path, rule["id"], rule["nodes"][0]["html"][:160]))
    context.close()
    assert found == []


def test_a_narrow_screen_does_not_scroll_sideways(browser: Any, address: str):
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    for path in ("/", "/studies/vit", "/studies/vit/trials/4", "/studies/vit/program", "/recipes"):
        page.goto(address + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    context.close()
