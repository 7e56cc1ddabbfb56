from __future__ import annotations

import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from thunder_tune.dashboards import actions
from thunder_tune.storage import Database
from thunder_tune.study.lease import holding

PLACE = "/studies/bert/cancel"


def seal(client: TestClient, place: str = PLACE) -> str:
    found = re.search(r'name="seal" value="(\w+)"', client.get(place).text)
    assert found
    return found.group(1)


def post(client: TestClient, *, given: str, **headers: str):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(PLACE, data={"seal": given}, headers=names, follow_redirects=False)


def test_a_study_whose_process_is_gone_is_cancelled(client: TestClient, filled: Database):
    assert f'href="{PLACE}"' in client.get("/studies/bert").text
    answer = post(client, given=seal(client))
    assert (answer.status_code, answer.headers["location"]) == (303, "/studies/bert")
    assert filled.study("bert").state == "interrupted"
    assert f'href="{PLACE}"' not in client.get("/studies/bert").text
    assert "nothing to cancel" in client.get(PLACE).text


def test_a_process_that_lives_is_asked_to_end(
    client: TestClient, filled: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actions, "PATIENCE_S", 0.0)
    with holding(filled, "bert"):
        assert post(client, given=seal(client)).status_code == 303
        lease = filled.lease("bert")
        assert lease is not None
        assert lease.is_cancelled
        assert "asked to end" in client.get("/studies/bert").text


def test_nothing_else_is_changed(client: TestClient, filled: Database):
    before = [s for s in filled.studies() if s.name != "bert"], filled.recipes()
    post(client, given=seal(client))
    assert ([s for s in filled.studies() if s.name != "bert"], filled.recipes()) == before


@pytest.mark.parametrize("given", ["", "0" * 64, "ü", "%ff"])
def test_a_form_of_another_place_is_refused(client: TestClient, filled: Database, given: str):
    assert post(client, given=given).status_code == 403
    assert filled.study("bert").state == "running"


def test_the_seal_is_of_one_study(client: TestClient, filled: Database):
    filled.create_study(replace(filled.study("bert").spec, name="bert2"))
    assert post(client, given=seal(client, "/studies/bert2/cancel")).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://127.0.0.1"},
    ],
)
def test_another_sites_page_is_refused(client: TestClient, filled: Database, headers):
    assert post(client, given=seal(client), **headers).status_code == 403
    assert filled.study("bert").state == "running"


def test_this_servers_page_is_not(client: TestClient, filled: Database):
    own = {"origin": "http://127.0.0.1", "sec_fetch_site": "same-origin"}
    assert post(client, given=seal(client), **own).status_code == 303


def test_looking_changes_nothing(client: TestClient, filled: Database):
    client.get(PLACE, params={"seal": seal(client)})
    assert filled.study("bert").state == "running"


def test_a_large_form_is_refused(client: TestClient, filled: Database):
    assert post(client, given="x" * 5000).status_code == 413


def test_what_does_not_exist_cannot_be_cancelled(client: TestClient, filled: Database):
    place = "/studies/nope/cancel"
    assert client.get(place).status_code == 404
    assert client.post(place, data={"seal": "0"}).status_code == 403
