from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.recipes import read_recipe, write_recipe
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.study import baselines_for

PROGRAMS = {
    "eager": 20.0,
    "torch.compile": 12.0,
    "torch.compile:max-autotune": 11.0,
    "thunder": 14.0,
}
PATH = Path("mlp.recipe.json")


@pytest.fixture
def with_recipe(use_pool, capsys):
    use_pool()
    run(["run", "--model", "mlp", "--device", "cpu", "--trials", "4", "--study", "s"])
    capsys.readouterr()


@pytest.mark.usefixtures("with_recipe")
@pytest.mark.parametrize("subject", [str(PATH), "s"])
def test_recipe_and_baselines_are_measured_together(use_pool, capsys, subject):
    pool = use_pool()
    assert run(["bench", subject, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        "recipe", "device", "rounds", "processes", "baselines", "tuned", "commands",
        "marks", "error",
    ]  # fmt: skip
    assert document["recipe"]["digest"] == read_recipe(PATH).digest
    assert [b["name"] for b in document["baselines"]] == list(baselines_for("cpu"))
    assert document["tuned"]["verdict"] == "faster"
    assert document["tuned"]["speedup"] == pytest.approx(11 / 8, rel=0.02)
    assert document["rounds"] == len(set(document["processes"])) == 3
    assert [c.name for c in pool.compared[0].contenders] == [*baselines_for("cpu"), "tuned"]
    assert pool.submitted == []
    assert list(document["commands"]) == [*baselines_for("cpu"), "tuned"]
    assert subject in document["commands"]["tuned"]


@pytest.mark.usefixtures("with_recipe")
def test_the_table_names_the_best_baseline(capsys):
    assert run(["bench", str(PATH)]) == 0
    out = capsys.readouterr().out
    assert "best baseline" in out
    assert "composed, faster" in out
    assert f'  tuned: model = thunder.compile(model, recipe=load_recipe("{PATH}"))\n' in out
    assert "  torch.compile:max-autotune: model = torch.compile(model, mode='max-autotune')" in out


@pytest.mark.usefixtures("with_recipe")
def test_a_convolutional_network_also_runs_with_its_channels_last(use_pool):
    ends = {f"{name}:channels-last": ms for name, ms in (("eager", 15.0), ("torch.compile", 10.0))}
    pool = use_pool(programs={**PROGRAMS, **ends})
    recipe = read_recipe(PATH)
    plan = dataclasses.replace(recipe.plans[0], classes={"conv-1": "conv-2"})
    write_recipe(dataclasses.replace(recipe, plans=(plan,)), PATH)
    assert run(["bench", str(PATH)]) == 0
    names = [c.name for c in pool.compared[0].contenders]
    assert names[-3:] == ["eager:channels-last", "torch.compile:channels-last", "tuned"]


@pytest.mark.usefixtures("with_recipe")
def test_baselines_can_be_chosen(use_pool):
    pool = use_pool(programs={**PROGRAMS, "eager:channels-last": 15.0})
    asked = ("eager:channels-last", "thunder", "thunder")
    assert run(["bench", str(PATH), *(f"--baseline={name}" for name in asked)]) == 0
    names = [c.name for c in pool.compared[0].contenders]
    assert names == ["eager:channels-last", "thunder", "tuned"]


@pytest.mark.usefixtures("with_recipe")
@pytest.mark.parametrize(
    ("name", "mode", "says"),
    [
        ("torch.compile:reduce-overhead", "inference", "unknown baseline 'torch.compile:reduce-"),
        ("jax", "inference", "use one of eager, torch.compile, "),
        ("eager:channels-last", "train", "channels last is for inference alone"),
    ],
)
def test_baselines_that_are_not_there_are_refused(capsys, name, mode, says):
    recipe = read_recipe(PATH)
    source = dataclasses.replace(recipe.source, mode=mode)
    write_recipe(dataclasses.replace(recipe, source=source), PATH)
    assert run(["bench", str(PATH), "--baseline", name]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("with_recipe")
def test_a_recipe_that_fails_is_status_one(use_pool, capsys):
    use_pool(failures={("executor:linear-1", "fast"): "compile"})
    assert run(["bench", str(PATH), "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["tuned"] is None
    assert document["error"] == "compile: planted compile"
    assert "error: compile: planted compile" in captured.err.splitlines()


@pytest.mark.usefixtures("with_recipe")
def test_a_recipe_from_elsewhere_says_what_differs(capsys):
    other = Fingerprint(device="NVIDIA H200", capability="sm_90")
    write_recipe(dataclasses.replace(read_recipe(PATH), fingerprint=other), PATH)
    assert run(["bench", str(PATH)]) == 0
    assert "tuned elsewhere: device " in capsys.readouterr().err


@pytest.mark.usefixtures("with_recipe")
def test_no_rounds_are_refused(capsys):
    assert run(["bench", str(PATH), "--rounds", "0"]) == 2
    assert "rounds 0: must be at least 1" in capsys.readouterr().err
