from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.compiler import inspecting
from thunder_tune.machine import current_fingerprint
from thunder_tune.models import load
from thunder_tune.program import capture
from thunder_tune.recipes import write_recipe
from thunder_tune.storage import Database
from thunder_tune.study import explaining
from thunder_tune.testing.sample_values import make_spec
from thunder_tune.values.recipe import Recipe, TunedPlan, with_all_shapes
from thunder_tune.values.source import ModelSource

PATH = Path("mlp.recipe.json")
SOURCE = ModelSource(name="mlp")


@pytest.fixture(scope="module")
def recipe():
    """Return a composed recipe without a region: nothing is to be compiled."""
    loaded = load(SOURCE)
    inputs = loaded.make_inputs(0)
    found = capture(loaded.model, inputs.args, inputs.kwargs)
    prefix = {True: "executor:", False: "fuser:"}
    sites = {f"rewrite:{c.id}": "addmm_gelu" for c in found.program.site_classes}
    plan = TunedPlan(
        signature=found.signature,
        program_hash=found.program.hash,
        program_loose_hash=found.program.loose_hash,
        assignment={
            "program": "composed",
            **{prefix[c.is_anchor] + c.id: "torch" for c in found.program.classes},
            **{name: c for name, c in sites.items() if "linear_gelu" in name},
        },
        classes=found.program.loose_ids,
    )
    return Recipe(
        model="mlp",
        source=SOURCE,
        kind="composed",
        plans=(plan,),
        fingerprint=current_fingerprint("cpu"),
    )


@pytest.fixture(autouse=True)
def written(own_folder, recipe):
    write_recipe(recipe, PATH)


@pytest.fixture
def elsewhere(monkeypatch, recipe):
    """Let the recipe be one for a device that is not here."""
    for module in (inspecting, explaining):
        monkeypatch.setattr(module, "is_device_here", lambda device: device == "cpu")
    write_recipe(replace(recipe, source=replace(SOURCE, device="cuda")), PATH)


def with_plan(recipe, kind="composed", **choices):
    plan = recipe.plans[0]
    assignment = {**plan.assignment, **choices} if kind == "composed" else choices
    return replace(recipe, kind=kind, plans=(replace(plan, assignment=assignment),))


def document_of(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_document(capsys, recipe):
    assert run(["explain", str(PATH), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert list(document) == [
        "recipe", "device", "is_here", "front_end", "options", "applied", "classes", "rewrites",
        "statements", "profile", "baselines", "texts", "checks", "diff", "notes", "error",
    ]  # fmt: skip
    assert document["recipe"]["digest"] == recipe.digest
    assert document["applied"] == 1.0
    assert document["options"] == {"cuda_graphs": "none", "float32_matmul": "ieee"}
    assert document["rewrites"] == [
        {"rewrite": "linear_gelu", "executor": "addmm_gelu", "sites": 2}
    ]
    assert document["profile"] is None
    assert {c["kind"] for c in document["classes"]} >= {"linear", "activation", "linear_gelu"}
    assert "Program, in order" in captured.err


def test_the_tables(capsys):
    assert run(["explain", str(PATH)]) == 0
    out = capsys.readouterr().out
    assert "not measured" in out
    assert "100.0% of the ops are where the recipe says" in out
    assert "rewrite: linear_gelu to addmm_gelu at 2 sites" in out


def test_the_profile_of_statements_and_of_a_baseline(capsys):
    words = ["--profile", "--baseline", "eager", "--calls", "2", "--json"]
    assert run(["explain", str(PATH), *words]) == 0
    document = document_of(capsys)
    profile, (eager,) = document["profile"], document["baselines"]
    assert all(s["ms"] is not None for s in document["statements"])
    assert profile["clock"] == "host"
    assert profile["idle_ms"] is None
    assert eager["name"] == "eager"
    (product,) = [k for k in eager["kernels"] if k["name"] == "aten::addmm"]
    assert product["times"] == 3
    numbers = {s["number"] for s in document["statements"]}
    owners = {n for k in profile["kernels"] for n in k["statements"]}
    assert owners == numbers


def test_what_was_measured_is_kept_beside_the_recipe(recipe):
    database = Database.open("tt.db")
    assert run(["explain", str(PATH), "--profile", "--calls", "1"]) == 0  # of no database
    assert database.anatomy(recipe) is None
    database.create_study(make_spec("s"))
    database.save_recipe("s", recipe)
    words = ["--profile", "--trace", "--calls", "1", "--storage", "tt.db"]
    assert run(["explain", "s", *words]) == 0
    found = database.anatomy(recipe)
    database.close()
    assert found is not None
    assert found.costs is not None
    assert "addmm_gelu" in {s.place for s in found.statements if s.ms}
    assert found.texts[0].title == "forward"


def test_a_whole_program_has_a_kernel_table(capsys, recipe):
    write_recipe(with_plan(recipe, "whole-program", program="eager"), PATH)
    assert run(["explain", str(PATH), "--profile", "--calls", "2"]) == 0
    out = capsys.readouterr().out
    assert "one back end runs the whole program: eager" in out
    assert "aten::addmm" in out
    assert "Classes" not in out


def test_the_texts_and_the_checks(capsys):
    assert run(["explain", str(PATH), "--trace", "--check-traces", "--json"]) == 0
    document = document_of(capsys)
    assert [t["title"] for t in document["texts"]] == ["forward"]
    assert "def program(" in document["texts"][0]["text"]
    assert [c["problem"] for c in document["checks"]] == [None, None]


@pytest.mark.parametrize("program", ["composed", "torch.compile"])
def test_what_the_process_has_compiled_before_shows_its_code(capsys, recipe, program):
    names = recipe.plans[0].assignment
    regions = {n: "inductor" for n in names if n.startswith("executor:layer_norm")}
    made = {
        "composed": with_plan(recipe, **regions),
        "torch.compile": with_plan(recipe, "whole-program", program="torch.compile"),
    }
    write_recipe(made[program], PATH)
    for _ in range(2):
        assert run(["explain", str(PATH), "--trace", "--json"]) == 0
        texts = document_of(capsys)["texts"]
        codes = [t["text"] for t in texts if "generated by Inductor" in t["title"]]
        assert codes
        assert all("def call(" in code for code in codes)


def test_what_another_recipe_does_else(capsys, recipe):
    name = next(n for n in recipe.plans[0].assignment if n.startswith("executor:layer_norm"))
    other = with_plan(recipe, cuda_graphs="whole", **{name: "inductor"})
    write_recipe(other, Path("other.json"))
    assert run(["explain", str(PATH), "--diff", "other.json", "--json"]) == 0
    diff = document_of(capsys)["diff"]
    assert diff["recipe"]["digest"] == other.digest
    assert diff["choices"] == [
        {"dimension": name, "here": "torch", "there": "inductor"},
        {"dimension": "cuda_graphs", "here": None, "there": "whole"},
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", ["none", "whole"])
def test_the_profile_on_a_device(capsys, recipe, graphs):
    regions = {
        n: "inductor"
        for n in recipe.plans[0].assignment
        if n.startswith(("fuser:", "executor:layer_norm", "executor:activation"))
    }
    rewrites = {n: "none" for n in recipe.plans[0].assignment if n.startswith("rewrite:")}
    made = with_plan(recipe, cuda_graphs=graphs, **regions, **rewrites)
    write_recipe(replace(made, source=replace(SOURCE, device="cuda")), PATH)
    baseline = "torch.compile:reduce-overhead"
    words = ["--profile", "--trace", "--baseline", baseline, "--json"]
    assert run(["explain", str(PATH), *words]) == 0
    document = document_of(capsys)
    profile, (beside,) = document["profile"], document["baselines"]
    assert profile["clock"] == "device"
    assert document["applied"] == 1.0
    assert 0 < profile["work_ms"] <= profile["latency_ms"] + profile["profiled_ms"]
    owners = {n for k in profile["kernels"] for n in k["statements"]}
    assert owners == {s["number"] for s in document["statements"] if s["ms"]}
    assert any("triton" in k["name"] for k in profile["kernels"])
    assert any("triton" in k["name"] for k in beside["kernels"])
    assert any("def call(" in t["text"] for t in document["texts"])


@pytest.mark.usefixtures("elsewhere")
def test_without_the_device_the_plan_is_explained(capsys):
    assert run(["explain", str(PATH), "--trace", "--json"]) == 0
    document = document_of(capsys)
    assert not document["is_here"]
    assert all(c["ran"] is None for c in document["classes"])
    assert "cuda:0 f32[1, 256]" in document["texts"][0]["text"]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("words", [["--profile"], ["--nvtx"], ["--baseline", "eager"]])
def test_without_the_device_nothing_runs(capsys, words):
    assert run(["explain", str(PATH), *words]) == 2
    assert "the recipe is for cuda and there is none here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--baseline", "fast"], "unknown baseline 'fast': use one of eager, torch.compile"),
        (["--profile", "--calls", "0"], "calls 0: must be at least 1"),
        (["--nvtx", "--profile"], "leave --profile out"),
        (["--diff", "none.json"], "recipe none.json does not exist"),
    ],
)
def test_wrong_words_are_status_two(capsys, words, message):
    assert run(["explain", str(PATH), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_program_that_fails_is_status_one(capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("planted\nfault")

    monkeypatch.setattr(explaining, "whole_program", lambda model, name: fail)
    assert run(["explain", str(PATH), "--baseline", "eager"]) == 1
    assert "error: the program fails: RuntimeError: planted fault" in capsys.readouterr().err


def test_a_recipe_for_several_shapes_is_explained_for_one(recipe, capsys):
    source = replace(SOURCE, batch_size=4)
    loaded = load(source)
    inputs = loaded.make_inputs(0)
    found = capture(loaded.model, inputs.args, inputs.kwargs)
    plan = TunedPlan(
        signature=found.signature,
        program_hash=found.program.hash,
        program_loose_hash=found.program.loose_hash,
        assignment={"program": "composed"},
        classes=found.program.loose_ids,
    )
    other = replace(recipe, plans=(plan,), source=source)
    write_recipe(with_all_shapes([recipe, other]), PATH)
    for words, part, name in (([], recipe, "1"), (["--shape", "4"], other, "4")):
        assert run(["explain", str(PATH), *words, "--diff", str(PATH), "--json"]) == 0
        captured = capsys.readouterr()
        document = json.loads(captured.out)
        assert document["recipe"]["inputs"] == part.plans[0].signature
        assert document["recipe"]["digest"] == part.digest
        assert document["diff"] == {"recipe": document["recipe"], "choices": []}
        assert f"shape {name}: {part.plans[0].signature} (--shape chooses another:" in captured.err
        assert not any("carried from another shape" in note for note in document["notes"])
    assert run(["explain", str(PATH), "--shape", "8"]) == 2
    assert "has no plan for it, it has 1, 4" in capsys.readouterr().err
