from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from thunder_tune.dashboards.app import create_app
from thunder_tune.dashboards.security import HEADERS, Guard
from thunder_tune.dashboards.source import Source
from thunder_tune.storage import Database

TOKEN = "correct horse battery"


@pytest.fixture
def guarded(filled: Database) -> TestClient:
    app = create_app(Source.of(filled), token=TOKEN, hosts=None)
    return TestClient(app, base_url="http://gpu.example", follow_redirects=False)


@pytest.mark.parametrize("path", ["/", "/studies/vit", "/api/studies", "/static/app.js", "/nope"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff"])
def test_nothing_is_shown_without_the_token(guarded: TestClient, path: str, query: str):
    answer = guarded.get(path + query)
    assert answer.status_code == 401
    assert "vit" not in answer.text


def test_the_token_in_the_address_becomes_a_cookie(guarded: TestClient):
    answer = guarded.get("/studies/vit", params={"token": TOKEN, "lang": "zh"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/studies/vit?lang=zh"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert guarded.get("/studies/vit").status_code == 200


def test_the_redirect_stays_here(guarded: TestClient):
    answer = guarded.get("http://gpu.example//evil.example/", params={"token": TOKEN})
    assert answer.headers["location"] == "/evil.example/"


def test_programs_send_the_token_as_a_header(guarded: TestClient):
    for value, status in ((f"Bearer {TOKEN}", 200), ("Bearer nope", 401), (TOKEN, 401)):
        answer = guarded.get("/api/studies", headers={"authorization": value})
        assert answer.status_code == status


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]"])
def test_another_name_for_this_machine_is_refused(client: TestClient, filled: Database, host: str):
    assert client.get("/api/studies", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8484", "[::1]:8484", "LOCALHOST"])
def test_this_machine_is_known_by_its_names(client: TestClient, filled: Database, host: str):
    assert client.get("/api/studies", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/studies/vit", "/api/studies/vit"])
def test_nothing_can_be_done_but_read(
    client: TestClient, filled: Database, method: str, path: str
):
    assert client.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/", "/studies/vit", "/api/studies"])
def test_heads_can_be_asked_for(client: TestClient, filled: Database, path: str):
    assert client.head(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/studies/vit", "/api/studies", "/nope", "/static/app.js"])
def test_every_answer_has_the_headers(client: TestClient, filled: Database, path: str):
    answer = client.get(path)
    assert HEADERS.items() <= dict(answer.headers).items()
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_guard_without_names_needs_a_token():
    with pytest.raises(ValueError, match="needs a token"):
        Guard(Starlette(), hosts=None)


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc"]
)
def test_static_files_come_from_their_folder_alone(client: TestClient, path: str):
    assert client.get(path).status_code == 404
