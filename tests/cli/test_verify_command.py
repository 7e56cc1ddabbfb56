from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from thunder_tune.cli.exits import run
from thunder_tune.recipes import read_recipe, write_recipe
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.recipe import with_all_shapes

PATH = Path("mlp.recipe.json")
FUSED = ("fuser:glue-1", "inductor")
LINEAR = ("executor:linear-1", "fast")
COSTS = {LINEAR: -3.0, FUSED: -2.0}
"""The recipe takes 13 - 3 - 2 = 8 ms, the best baseline 11 ms."""


@pytest.fixture(autouse=True)
def with_recipe(use_pool, capsys):
    use_pool()
    run(["run", "--model", "mlp", "--device", "cpu", "--trials", "4", "--study", "s"])
    capsys.readouterr()


def verify(capsys, *words, status=0):
    assert run(["verify", str(PATH), "--json", *words]) == status
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def change_recipe(**changes):
    write_recipe(dataclasses.replace(read_recipe(PATH), **changes), PATH)


def test_a_recipe_that_keeps_its_claim_is_confirmed(use_pool, capsys):
    pool = use_pool()
    document, err = verify(capsys, "--fail-if-slower", "0")
    assert list(document) == [
        "recipe", "finding", "reason", "change_percent", "stated", "device", "differences",
        "processes", "baselines", "tuned", "marks", "error",
    ]  # fmt: skip
    assert (document["finding"], document["reason"], document["error"]) == (
        "confirmed",
        None,
        None,
    )
    assert abs(document["change_percent"]) < 1
    assert document["stated"]["speedup"] == read_recipe(PATH).evidence.speedup
    assert document["tuned"]["speedup"] == pytest.approx(11 / 8, rel=0.01)
    assert len(set(document["processes"])) == 3
    assert "confirmed to within 0." in err
    names = [c.name for c in pool.compared[0].contenders]
    assert names == [
        "tuned", "torch.compile:max-autotune", "torch.compile", "thunder", "eager",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("linear_ms", "words", "status", "change"),
    [
        (-2.0, [], 0, -11.1),
        (-2.0, ["--fail-if-slower", "5"], 3, -11.1),
        (-2.0, ["--fail-if-slower", "20"], 0, -11.1),
        (-4.0, ["--fail-if-slower", "0"], 0, 14.3),
    ],
)
def test_a_changed_speedup_is_told_and_fails_where_asked(
    use_pool, capsys, linear_ms, words, status, change
):
    use_pool(choices={**COSTS, LINEAR: linear_ms})
    document, err = verify(capsys, *words, status=status)
    assert document["finding"] == "changed"
    assert document["change_percent"] == pytest.approx(change, abs=0.5)
    assert f"changed by {document['change_percent']:+.1f} %" in err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert lines == ([f"error: {document['error']}"] if status else [])
    assert not status or "% lower than stated: more than the 5 %" in document["error"]


def test_what_differs_is_named_beside_a_change(use_pool, capsys):
    here = read_recipe(PATH).fingerprint
    change_recipe(fingerprint=dataclasses.replace(here, packages={"torch": "2.10.0"}))
    document, err = verify(capsys)
    assert (document["finding"], document["differences"]) == (
        "confirmed",
        ["torch none here, 2.10.0 there"],
    )
    assert "differs" not in err
    use_pool(choices={**COSTS, LINEAR: -2.0})
    _, err = verify(capsys)
    assert "differs: torch none here, 2.10.0 there" in err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"fingerprint": Fingerprint(device="NVIDIA H200", capability="sm_90")},
            "another kind of device: fake cpu here, NVIDIA H200 there",
        ),
        ({"evidence": None}, "the recipe states no measurement"),
    ],
)
def test_another_machine_or_no_claim_is_not_comparable(capsys, changes, reason):
    change_recipe(**changes)
    document, err = verify(capsys)
    assert (document["finding"], document["reason"]) == ("not comparable", reason)
    assert f"not comparable: {reason}" in err
    document, err = verify(capsys, "--fail-if-slower", "5", status=1)
    assert document["finding"] == "not comparable"
    assert f"error: --fail-if-slower could not be checked: not comparable: {reason}" in err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signature": "(float32[8])"}, "other shapes: (float32[4]) here, (float32[8]) there"),
        ({"program_hash": "0" * 64}, "another program: ffffffffffff here, 000000000000 there"),
    ],
)
def test_another_model_or_shape_is_not_comparable(use_pool, capsys, changes, reason):
    (plan,) = read_recipe(PATH).plans
    change_recipe(plans=(dataclasses.replace(plan, **changes),))
    pool = use_pool()
    document, _ = verify(capsys)
    assert document["reason"].startswith(reason)
    assert (pool.compared, document["tuned"]) == ([], None)


def test_a_recipe_for_cuda_is_not_comparable_without_a_device(use_pool, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    source = dataclasses.replace(read_recipe(PATH).source, device="cuda")
    change_recipe(source=source, fingerprint=Fingerprint(device="H200", capability="sm_90"))
    document, _ = verify(capsys)
    assert document["reason"] == "another kind of device: no CUDA device here, H200 there"


def test_a_recipe_that_fails_now_is_status_one(use_pool, capsys):
    use_pool(failures={LINEAR: "compile"})
    document, err = verify(capsys, status=1)
    assert (document["finding"], document["error"]) == (None, "compile: planted compile")
    assert "error: compile: planted compile" in err.splitlines()


def test_short_of_time_the_best_baseline_is_measured_before_others(use_pool, capsys):
    pool = use_pool()
    pool.costs = dataclasses.replace(pool.costs, compare_build_s=10.0)
    document, _ = verify(capsys, "--time-budget", "2m")
    assert document["finding"] == "confirmed"
    measured = [b["name"] for b in document["baselines"] if b["failure"] is None]
    assert measured[0] == "torch.compile:max-autotune"
    assert len(measured) < 4


def test_disturbances_are_shown(use_pool, capsys):
    use_pool(marks=("host-busy", "clock-changed"))
    document, err = verify(capsys)
    assert document["marks"] == {"host-busy": 3, "clock-changed": 3}
    assert "disturbed, of 3 processes: host-busy in 3, clock-changed in 3" in err


def test_noise_in_which_a_change_would_not_show_confirms_nothing(use_pool, capsys):
    use_pool(noise=1.0, marks=("host-busy",))
    document, _ = verify(capsys, "--fail-if-slower", "50", status=1)
    assert (document["finding"], document["change_percent"]) == ("not comparable", None)
    assert document["tuned"]["latency_ms"] > 0
    assert document["reason"].startswith("too much noise: a change below ")
    count = len(document["processes"])
    assert document["reason"].endswith(f"of {count} processes: host-busy in {count}")


@pytest.mark.parametrize("percent", ["-1", "100", "x"])
def test_a_percentage_out_of_range_is_refused(capsys, percent):
    assert run(["verify", str(PATH), "--fail-if-slower", percent]) == 2
    assert "--fail-if-slower" in capsys.readouterr().err


def test_a_missing_recipe_is_status_two(capsys):
    assert run(["verify", "none.recipe.json"]) == 2
    assert "none.recipe.json does not exist" in capsys.readouterr().err


def test_one_shape_of_several_is_verified(use_pool, capsys):
    first = read_recipe(PATH)
    plan = dataclasses.replace(first.plans[0], signature="float32[8,4]")
    source = dataclasses.replace(first.source, batch_size=8)
    other = dataclasses.replace(first, plans=(plan,), source=source)
    write_recipe(with_all_shapes([first, other]), PATH)
    use_pool()
    document, err = verify(capsys)
    assert document["finding"] == "confirmed"
    assert document["recipe"]["inputs"] == first.plans[0].signature
    assert "shape 1: (float32[4]) (--shape chooses another: 8)" in err
    pool = use_pool()
    pool.description = dataclasses.replace(pool.description, signature="float32[8,4]")
    document, err = verify(capsys, "--shape", "8")
    assert document["finding"] == "confirmed"
    assert document["recipe"] | {"inputs": "float32[8,4]"} == document["recipe"]
    assert {job.setting.source.batch_size for job in pool.compared} == {8}
