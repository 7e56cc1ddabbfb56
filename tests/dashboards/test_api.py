from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from thunder_tune.dashboards.app import create_app
from thunder_tune.dashboards.source import Source
from thunder_tune.storage import Database
from thunder_tune.study.lease import holding
from thunder_tune.testing.sample_values import make_result, make_spec, trial_results
from thunder_tune.values.trial import TrialResult


def get(client: TestClient, path: str, status: int = 200):
    answer = client.get(path)
    assert answer.status_code == status, answer.text[:300]
    return json.loads(answer.text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


def test_studies_are_listed_newest_first(client: TestClient, filled: Database):
    found = get(client, "/api/studies")
    assert [s["name"] for s in found["studies"]] == ["bert", "vit"]
    assert found["studies"][1]["trials"] == 24


def test_a_study_says_what_was_asked_and_how_far_it_is(client: TestClient, filled: Database):
    found = get(client, "/api/studies/vit")
    assert (found["complete"], found["failed"], found["requested"]) == (21, 3, 24)
    assert found["source"]["name"] == "vit_b_16"
    assert found["description"]["fingerprint"]["device"] == "NVIDIA H200"
    assert get(client, "/api/studies/bert")["description"] is None


def test_a_study_without_a_result_has_empty_lists(client: TestClient, filled: Database):
    assert get(client, "/api/studies/bert/trials")["trials"] == []
    assert get(client, "/api/studies/bert/failures")["failures"] == []
    assert get(client, "/api/studies/bert/importance")["dimensions"] == []
    assert get(client, "/api/studies/bert/comparison")["comparison"] is None
    assert "no program yet" in get(client, "/api/studies/bert/program", 404)["error"]


def test_trials_are_sorted_filtered_and_paged_on_the_server(client: TestClient, filled: Database):
    first = get(client, "/api/studies/vit/trials?size=5&sort=latency&role=search&state=complete")
    second = get(
        client, "/api/studies/vit/trials?size=5&page=2&sort=latency&role=search&state=complete"
    )
    latencies = [t["latency_ms"] for t in (*first["trials"], *second["trials"])]
    assert first["total"] == 21
    assert len(latencies) == 10
    assert latencies == sorted(latencies)
    failed = get(client, "/api/studies/vit/trials?text=NO+KERNEL")
    assert {t["state"] for t in failed["trials"]} == {"failed"}
    assert failed["total"] == 3
    assert get(client, "/api/studies/vit/trials?page=1000")["trials"] == []


def test_what_has_no_value_comes_last_either_way(client: TestClient, filled: Database):
    for order in ("true", "false"):
        found = get(client, f"/api/studies/vit/trials?sort=latency&descending={order}&size=100")
        values = [t["latency_ms"] is None for t in found["trials"]]
        assert values == sorted(values)
        assert values[-1]


def test_a_trial_has_every_repeat(client: TestClient, filled: Database):
    found = get(client, "/api/studies/vit/trials/4")
    assert len(found["timing"]["samples_ms"]) == 20
    assert found["phase_s"]["compile"] == 2.5
    assert found["assignment"]["program"] == "composed"


def test_failures_are_grouped_by_cause(client: TestClient, filled: Database):
    found = get(client, "/api/studies/vit/failures")["failures"]
    assert [(f["kind"], f["times"]) for f in found] == [("compile", 3)]
    assert found[0]["message"].startswith("no kernel for shape")


def test_the_dimension_that_decides_is_the_most_important(client: TestClient, filled: Database):
    found = get(client, "/api/studies/vit/importance")["dimensions"]
    assert found[0]["dimension"] == "executor:linear-00000000"
    medians = [c["median_ms"] for c in found[0]["choices"]]
    assert medians == sorted(medians)


def test_a_recipe_is_found_by_its_digest(client: TestClient, filled: Database):
    (recipe,) = get(client, "/api/recipes")["recipes"]
    assert get(client, f"/api/recipes/{recipe['digest']}") == recipe
    assert "does not exist" in get(client, "/api/recipes/000000000000", 404)["error"]


def test_what_a_recipes_program_costs_is_told(client: TestClient, filled: Database):
    (recipe,) = filled.recipes()
    (found,) = get(client, f"/api/recipes/{recipe.digest}/anatomies")["anatomies"]
    assert [s["ms"] for s in found["statements"]] == [0.75, 0.25]
    assert found["baselines"]["torch.compile"]["latency_ms"] == 1.2
    assert found["inputs"] == "plan 0"


def test_a_comparison_has_no_infinity(client: TestClient, filled: Database):
    found = get(client, "/api/studies/vit/comparison")["comparison"]
    eager = next(s for s in found["standings"] if s["name"] == "eager")
    assert eager["ci95_ms"] == [0.1, None]


def test_machines_say_what_was_measured_on_them(client: TestClient, filled: Database):
    (machine,) = get(client, "/api/machines")["machines"]
    assert (machine["trials"], machine["studies"]) == (27, ["vit"])


def test_machines_say_what_runs(client: TestClient, filled: Database):
    filled.add_trial("bert", replace(make_result(), worker="worker-0"))
    with holding(filled, "bert"):
        (run,) = get(client, "/api/machines")["running"]
        assert get(client, "/api/studies/bert")["controller"] == run["controller"]
        assert "on " in client.get("/machines").text
    assert (run["study"], run["controller"]["life"]) == ("bert", "alive")
    assert [w["results"] for w in run["workers"]] == [1]
    assert get(client, "/api/machines")["running"][0]["controller"] is None


def test_a_program_says_where_a_trial_runs_its_ops(client: TestClient, filled: Database):
    found = get(client, "/api/studies/vit/program?trial=4")
    assert len(found["plan"]["targets"]) == len(found["program"]["ops"])
    assert get(client, "/api/studies/vit/program?trial=0")["plan"] is None
    assert get(client, "/api/studies/vit/program")["plan"] is None


@pytest.mark.parametrize(
    "path",
    [
        "/api/studies/nope",
        "/api/studies/nope/trials",
        "/api/studies/nope/events",
        "/api/studies/vit/trials/999",
        "/api/studies/a%2Fb",
        "/api/studies/..%2f..%2fetc%2fpasswd",
        "/api/nothing",
    ],
)
def test_what_does_not_exist_is_404(client: TestClient, filled: Database, path: str):
    assert set(get(client, path, 404)) == {"error"}


@pytest.mark.parametrize(
    "path",
    [
        "/api/studies/vit/trials?page=0",
        "/api/studies/vit/trials?size=100000",
        "/api/studies/vit/trials?sort=__class__",
        "/api/studies/vit/trials?state=%00",
        "/api/studies/vit/trials/-1",
        "/api/studies/vit/trials/99999999999999999999",
        "/api/studies/vit/trials/x",
        "/api/recipes/not-a-digest",
        f"/api/studies/{'x' * 201}",
        f"/api/studies/vit/trials?text={'x' * 300}",
    ],
)
def test_what_is_not_allowed_is_refused(client: TestClient, filled: Database, path: str):
    assert set(get(client, path, 422)) == {"error"}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(result=trial_results())
def test_any_stored_result_is_shown(database: Database, result: TrialResult):
    name = f"s{len(database.studies())}"
    database.create_study(make_spec(name))
    number = database.add_trial(name, result)
    database.add_trial(name, make_result())
    client = TestClient(create_app(Source.of(database)), base_url="http://127.0.0.1")
    for path in (f"/api/studies/{name}", f"/api/studies/{name}/trials?sort=error"):
        get(client, path)
    get(client, f"/api/studies/{name}/trials/{number}")
    get(client, f"/api/studies/{name}/failures")
    for path in (
        f"/studies/{name}",
        f"/studies/{name}/trials",
        f"/studies/{name}/trials/{number}",
    ):
        assert client.get(path).status_code == 200, path


def test_everything_is_described_by_openapi(client: TestClient):
    paths = get(client, "/api/openapi.json")["paths"]
    assert {
        "/api/studies",
        "/api/studies/{name}",
        "/api/studies/{name}/trials",
        "/api/studies/{name}/trials/{number}",
        "/api/studies/{name}/comparison",
        "/api/studies/{name}/events",
        "/api/recipes",
        "/api/recipes/{digest}",
    } <= set(paths)
    assert all(path.startswith("/api/") for path in paths)
    assert {method for entry in paths.values() for method in entry} == {"get"}


def test_new_trials_are_seen(client: TestClient, filled: Database):
    before = get(client, "/api/studies/vit/trials")["total"]
    filled.add_trial("vit", make_result())
    assert get(client, "/api/studies/vit/trials")["total"] == before + 1
