from __future__ import annotations

import json
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.recipes import read_recipe
from thunder_tune.values.study import baselines_for
from thunder_tune.values.trial import Failure

RUN = ["run", "--model", "mlp", "--device", "cpu", "--trials", "4"]
NAMES = list(baselines_for("cpu"))


def last_object(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_run_ends_with_a_recipe_and_zero(use_pool, capsys):
    pool = use_pool()
    assert run(RUN) == 0
    recipe = read_recipe(Path("mlp.recipe.json"))
    assert recipe.kind == "composed"
    assert recipe.plans[0].assignment["executor:linear-1"] == "fast"
    assert pool.is_closed
    out = capsys.readouterr().out
    assert "recipe: mlp.recipe.json" in out
    assert all(name in out for name in NAMES)


def test_the_object_has_exactly_the_promised_keys(use_pool, capsys):
    use_pool()
    assert run([*RUN, "--study", "s", "--json"]) == 0
    document = last_object(capsys)
    assert list(document) == [
        "study", "device", "capture", "trials", "baselines", "best", "best_composed", "error",
    ]  # fmt: skip
    assert document["study"] == "s"
    assert document["device"] == "fake cpu"
    assert document["error"] is None
    assert list(document["capture"]) == ["front_end", "seconds", "times"]
    assert document["capture"] == {"front_end": "dynamo", "seconds": 1.5, "times": 1}
    assert document["trials"] == {
        "requested": 4, "complete": 4, "failed": 0, "pruned": 0, "exhausted": False,
    }  # fmt: skip
    assert [b["name"] for b in document["baselines"]] == NAMES
    for baseline in document["baselines"]:
        assert list(baseline) == [
            "name", "latency_ms", "ci95_ms", "error_ratio", "peak_memory_bytes", "first_call_s",
            "failure",
        ]  # fmt: skip
        assert baseline["failure"] is None
        assert baseline["ci95_ms"][0] <= baseline["latency_ms"] <= baseline["ci95_ms"][1]
        assert baseline["first_call_s"] == 5.0
    for key in ("best", "best_composed"):
        winner = document[key]
        assert list(winner) == [
            "recipe", "digest", "kind", "latency_ms", "ci95_ms", "error_ratio", "applied",
            "verdict", "speedup", "speedup_ci95",
        ]  # fmt: skip
        assert winner["recipe"] == "mlp.recipe.json"
        assert winner["digest"] == read_recipe(Path("mlp.recipe.json")).digest
        assert winner["kind"] == "composed"
        assert winner["verdict"] == "faster"
        assert winner["applied"] == 1.0
        assert winner["speedup"] == pytest.approx(11 / 8, rel=0.02)
        assert winner["speedup_ci95"][0] <= winner["speedup"] <= winner["speedup_ci95"][1]


def test_with_json_everything_else_goes_to_stderr(use_pool, capsys):
    use_pool()
    run([*RUN, "--json"])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert "Confirmed" in captured.err
    assert "search" in captured.err


def test_when_a_back_end_wins_both_recipes_are_written(use_pool, capsys):
    use_pool(base_ms=40.0)
    assert run([*RUN, "--out", "won.recipe.json", "--json"]) == 0
    document = last_object(capsys)
    assert document["best"]["kind"] == "whole-program"
    assert document["best"]["recipe"] == "won.recipe.json"
    assert document["best"]["verdict"] == "tie"
    assert document["best_composed"]["kind"] == "composed"
    assert document["best_composed"]["recipe"] == "won.composed.recipe.json"
    assert document["best_composed"]["verdict"] == "slower"
    assert read_recipe(Path("won.recipe.json")).kind == "whole-program"
    assert read_recipe(Path("won.composed.recipe.json")).kind == "composed"


def test_failed_trials_and_baselines_are_told(use_pool, capsys):
    use_pool(
        failures={("executor:linear-1", "fast"): "compile", ("program", "thunder"): "timeout"}
    )
    assert run([*RUN, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    failures = {b["name"]: b["failure"] for b in document["baselines"]}
    assert failures.pop("thunder") == "timeout: planted timeout"
    assert set(failures.values()) == {None}
    assert document["trials"]["failed"] > 0
    assert "planted compile" in captured.err


def test_when_nothing_can_be_measured_the_status_is_one(use_pool, capsys):
    everything = {("program", name): "crash" for name in (*NAMES, "composed")}
    use_pool(failures=everything)
    assert run([*RUN, "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["best"] is None
    assert "nothing could be measured" in document["error"]
    assert captured.err.splitlines()[-1] == f"error: {document['error']}"


def test_a_model_that_cannot_be_tuned_is_one_line_and_status_one(use_pool, capsys):
    message = "the output never changes: it is the same for every input"
    use_pool(failure=Failure(kind="not-judgeable", phase="check", message=message))
    assert run([*RUN, "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"] == message
    assert f"error: {message}" in captured.err.splitlines()


def test_interrupting_keeps_the_trials_and_prints_how_to_go_on(use_pool, capsys):
    use_pool(interrupt_at=14)
    assert run([*RUN, "--study", "s"]) == 130
    captured = capsys.readouterr()
    assert "to go on: thunder-tune run --study s" in captured.err
    use_pool()
    assert run(["run", "--study", "s", "--json"]) == 0
    document = last_object(capsys)
    assert document["trials"]["complete"] == 4
    assert document["best"]["verdict"] == "faster"


def test_resuming_with_another_budget(use_pool, capsys):
    use_pool()
    run([*RUN[:-1], "1", "--study", "s", "--json"])
    assert last_object(capsys)["trials"]["complete"] == 1
    assert run(["run", "--study", "s", "--trials", "3", "--json"]) == 0
    assert last_object(capsys)["trials"]["requested"] == 3


def test_resuming_refuses_flags_that_belong_to_the_study(use_pool, capsys):
    use_pool()
    run([*RUN, "--study", "s"])
    assert run(["run", "--study", "s", "--dtype", "float16"]) == 2
    assert "--dtype without --model" in capsys.readouterr().err


def test_the_name_of_a_study_of_another_setting_is_refused(use_pool, capsys):
    use_pool()
    run([*RUN, "--study", "s"])
    assert run([*RUN, "--study", "s", "--batch-size", "2"]) == 2
    assert "exists with other settings" in capsys.readouterr().err


def test_a_dry_run_measures_nothing(use_pool, capsys):
    pool = use_pool()
    assert run([*RUN, "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [d["name"] for d in document["dimensions"]] == [
        "program", "executor:linear-1", "fuser:glue-1",
    ]  # fmt: skip
    assert document["trials"] == 4
    assert document["estimated_minutes"] > 0
    assert "estimated: " in captured.err
    assert pool.submitted == []
    assert not Path("mlp.recipe.json").exists()


def test_a_recipe_file_that_cannot_be_written_is_found_before_the_search(use_pool, capsys):
    pool = use_pool()
    assert run([*RUN, "--out", "absent/folder/m.json"]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert pool.submitted == []


def test_an_exhausted_space_is_said_to_be_exhausted(use_pool, capsys):
    use_pool()
    assert run([*RUN[:-1], "50", "--json"]) == 0
    trials = last_object(capsys)["trials"]
    assert trials["exhausted"] is True
    assert trials["complete"] == 4
