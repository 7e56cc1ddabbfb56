"""`run --shapes`: a study for each shape, one recipe, and what other commands make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from thunder_tune.cli import services
from thunder_tune.cli.exits import run
from thunder_tune.recipes import read_recipe
from thunder_tune.storage import Database
from thunder_tune.values.trial import Failure

RUN = ["run", "--model", "mlp", "--device", "cpu", "--trials", "4", "--study", "s"]
FAST = {"executor:linear-1": "fast", "fuser:glue-1": "inductor"}


def inputs(batch: int) -> str:
    return f"float32[{batch},4]"


@pytest.fixture
def use_pools(monkeypatch, own_folder, make_pool) -> Callable[..., dict[str, object]]:
    """Let each study run on a fake pool of its own; options by batch size; returns the pools."""

    def use(by_batch=None, **options):
        pools = {}

        @contextmanager
        def fake(setting, **kwargs):
            batch = setting.source.batch_size
            pool = make_pool(**{**options, **(by_batch or {}).get(batch, {})})
            description = pool.description
            if description.failure is None:
                pool.description = replace(
                    description, signature=inputs(batch), model_key=f"key {batch}"
                )
            pools[batch] = pool
            yield pool
            pool.close()

        monkeypatch.setattr(services, "pool", fake)
        monkeypatch.setattr(services, "single_pool", fake)
        return pools

    return use


def last_object(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_one_recipe_holds_a_plan_for_each_shape(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "64,1,8"]) == 0
    recipe = read_recipe(Path("mlp.recipe.json"))
    assert [plan.signature for plan in recipe.plans] == [inputs(n) for n in (1, 8, 64)]
    for part, batch in zip(recipe.by_shape, (1, 8, 64), strict=True):
        assert part.source.batch_size == batch
        assert part.evidence.study == f"s@{batch}"
        assert part.evidence.verdict == "faster"
        assert part.evidence.ci95_ms[0] <= part.evidence.latency_ms
        assert FAST.items() <= part.plans[0].assignment.items()
    out = capsys.readouterr().out
    assert f"study s@8: {inputs(8)}" in out
    assert out.count("recipe: mlp.recipe.json") == 1


def test_a_search_begins_with_the_best_of_the_shape_before(use_pools):
    pools = use_pools()
    assert run([*RUN[:5], "--trials", "9", "--study", "s", "--shapes", "1,8"]) == 0
    first = next(j.candidate for j in pools[8].submitted if j.role == "search")
    assert FAST.items() <= first.assignment.items()
    assert first.assignment["program"] == "composed"
    alone = next(j.candidate for j in pools[1].submitted if j.role == "search")
    assert not FAST.items() <= alone.assignment.items()


def test_the_object_of_several_shapes(use_pools, capsys):
    use_pools({8: {"base_ms": 40.0}})
    assert run([*RUN, "--shapes", "1,8", "--json"]) == 0
    document = last_object(capsys)
    assert list(document) == [
        "study", "recipe", "digest", "composed_recipe", "shapes", "error",
    ]  # fmt: skip
    assert document["study"] == "s"
    assert document["recipe"] == "mlp.recipe.json"
    assert document["composed_recipe"] == "mlp.composed.recipe.json"
    assert document["digest"] == read_recipe(Path("mlp.recipe.json")).digest
    assert document["error"] is None
    assert [s["inputs"] for s in document["shapes"]] == [inputs(1), inputs(8)]
    assert [s["batch_size"] for s in document["shapes"]] == [1, 8]
    assert [s["best"]["kind"] for s in document["shapes"]] == ["composed", "whole-program"]
    kinds = [part.kind for part in read_recipe(Path("mlp.recipe.json")).by_shape]
    assert kinds == ["composed", "whole-program"]
    kinds = [part.kind for part in read_recipe(Path("mlp.composed.recipe.json")).by_shape]
    assert kinds == ["composed", "composed"]


def test_an_interrupted_run_goes_on_with_the_shapes_that_are_left(use_pools, capsys):
    pools = use_pools({8: {"interrupt_at": 9}})
    assert run([*RUN, "--shapes", "1,8,64"]) == 130
    captured = capsys.readouterr()
    assert "s@8, s@64 not done; to go on: thunder-tune run --study s" in captured.err
    assert sorted(pools) == [1, 8]
    assert not Path("mlp.recipe.json").exists()
    assert run(["status", "s"]) == 0
    out = capsys.readouterr().out
    assert "study s@1: done" in out
    assert "study s@64: interrupted" in out
    assert out.count("to go on: thunder-tune run --study s\n") == 2
    pools = use_pools()
    assert run(["run", "--study", "s", "--json"]) == 0
    assert sorted(pools) == [8, 64]
    document = last_object(capsys)
    assert [s["trials"]["complete"] for s in document["shapes"]] == [4, 4, 4]
    assert [s["best"]["verdict"] for s in document["shapes"]] == ["faster"] * 3
    assert len(read_recipe(Path("mlp.recipe.json")).plans) == 3


def test_a_new_budget_goes_to_every_shape_and_a_new_shape_joins(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "1,8"]) == 0
    pools = use_pools()
    assert run([*RUN[:5], "--study", "s", "--shapes", "1,4,8"]) == 0
    assert sorted(pools) == [4]
    assert len(read_recipe(Path("mlp.recipe.json")).plans) == 3
    pools = use_pools()
    capsys.readouterr()
    assert run(["run", "--study", "s", "--trials", "6", "--json"]) == 0
    assert sorted(pools) == [1, 4, 8]
    assert [s["trials"]["requested"] for s in last_object(capsys)["shapes"]] == [6, 6, 6]


def test_a_study_of_another_setting_is_found_before_the_search(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "8"]) == 0
    pools = use_pools()
    assert run([*RUN, "--shapes", "1,8", "--dtype", "bfloat16"]) == 2
    assert "'s@8' exists with other settings" in capsys.readouterr().err
    assert pools == {}


def test_one_shape_that_goes_on_alone_leaves_the_file_of_all_alone(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "1,8"]) == 0
    before = Path("mlp.recipe.json").read_text()
    assert run(["run", "--study", "s@8", "--trials", "6"]) == 0
    assert Path("mlp.recipe.json").read_text() == before
    alone = read_recipe(Path("mlp.8.recipe.json"))
    assert [plan.signature for plan in alone.plans] == [inputs(8)]
    assert run(["run", "--study", "s"]) == 0  # nothing is left to do: all are put together anew
    assert read_recipe(Path("mlp.recipe.json")).by_shape[1] == alone


def test_the_time_budget_is_divided(use_pools, own_folder):
    use_pools()
    assert run([*RUN, "--shapes", "1,8", "--time-budget", "10m"]) == 0
    database = Database.open(str(own_folder / "record.db"))
    shares = [database.study(f"s@{n}").spec.time_budget_s for n in (1, 8)]
    database.close()
    assert shares[0] == pytest.approx(300, abs=1)  # the fake pool takes no real time
    assert shares[1] == pytest.approx(600, abs=60)


def test_a_shape_that_cannot_be_measured_is_told_and_left_out(use_pools, capsys):
    failure = Failure(kind="crash", phase="check", message="CUDA out of memory")
    use_pools({8: {"failure": failure}})
    assert run([*RUN, "--shapes", "1,8,64", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["error"] == "s@8: CUDA out of memory"
    assert "without a plan in the recipe: s@8" in captured.err
    assert "error: s@8: CUDA out of memory" in captured.err
    recipe = read_recipe(Path("mlp.recipe.json"))
    assert [plan.signature for plan in recipe.plans] == [inputs(1), inputs(64)]


def test_shapes_that_give_the_same_inputs_are_refused_before_the_search(use_pool, capsys):
    pool = use_pool()
    assert run([*RUN, "--shapes", "1,8"]) == 2
    assert "two of the shapes give the same inputs, (float32[4])" in capsys.readouterr().err
    assert {j.setting.source.batch_size for j in pool.submitted} == {1}


def test_the_studies_of_a_run_are_shown_together_and_alone(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "1,8"]) == 0
    capsys.readouterr()
    assert run(["show", "s", "--json"]) == 0
    document = last_object(capsys)
    assert [s["study"] for s in document["shapes"]] == ["s@1", "s@8"]
    assert run(["show", "s"]) == 0
    out = capsys.readouterr().out
    assert "Study s@1: done" in out
    assert "Study s@8: done" in out
    assert run(["best", "s"]) == 0
    out = capsys.readouterr().out
    assert f"for {inputs(1)}, {inputs(8)}" in out
    assert f"Choices for {inputs(8)}" in out
    assert out.count("Confirmed") == 2
    assert run(["best", "s@8", "--json"]) == 0
    (plan,) = last_object(capsys)["plans"]
    assert plan["signature"] == inputs(8)
    assert run(["export", "s", "--out", "again.recipe.json"]) == 0
    assert read_recipe(Path("again.recipe.json")) == read_recipe(Path("mlp.recipe.json"))


def test_the_recipe_is_found_by_the_inputs_of_any_shape(use_pools, own_folder):
    use_pools()
    assert run([*RUN, "--shapes", "1,8"]) == 0
    database = Database.open(str(own_folder / "record.db"))
    for batch in (1, 8):
        newest, *_ = database.find_recipes(model_key=f"key {batch}")
        assert newest == read_recipe(Path("mlp.recipe.json"))
    database.close()


@pytest.mark.parametrize("subject", ["mlp.recipe.json", "s"])
@pytest.mark.parametrize("command", ["bench", "verify"])
def test_a_shape_is_measured_again(use_pools, capsys, subject, command):
    use_pools()
    assert run([*RUN, "--shapes", "1,8"]) == 0
    for words, batch in (([], 1), (["--shape", "8"], 8)):
        pools = use_pools()
        capsys.readouterr()
        assert run([command, subject, *words, "--json"]) == 0
        captured = capsys.readouterr()
        document = json.loads(captured.out)
        assert document["recipe"]["inputs"] == inputs(batch)
        assert document["tuned"]["verdict"] == "faster"
        assert f"shape {batch}: {inputs(batch)} (--shape chooses another: " in captured.err
        assert list(pools) == [batch]
    assert run([command, subject, "--shape", "2"]) == 2
    assert "has no plan for it, it has 1, 8" in capsys.readouterr().err


def test_a_dry_run_estimates_every_shape(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "1,8", "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert [s["trials"] for s in json.loads(captured.out)["shapes"]] == [4, 4]
    assert f"4 trials of {inputs(8)}" in captured.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shapes", "1,x"], "shape 'x': write a batch size of at least 1, as 8"),
        (["--shapes", "1,0"], "shape '0': write a batch size"),
        (["--shapes", "1,8x512"], "give all of them a sequence length"),
        (["--shapes", "1,8", "--batch-size", "2"], "both say the batch size"),
        (["--shapes", "1x64,8x64", "--seq-len", "2"], "both say the sequence length"),
    ],
)
def test_wrong_words(use_pools, capsys, words, told):
    pools = use_pools()
    assert run([*RUN, *words]) == 2
    assert told in capsys.readouterr().err
    assert pools == {}


def test_shapes_without_a_model_are_refused(use_pools, capsys):
    use_pools()
    assert run([*RUN, "--shapes", "1,8"]) == 0
    assert run(["run", "--study", "s", "--shapes", "1,8,64"]) == 2
    assert "--shapes without --model" in capsys.readouterr().err


def test_sequence_lengths_are_part_of_a_shape(use_pools, own_folder):
    use_pools()
    assert run([*RUN, "--shapes", "2x64,1x128"]) == 0
    database = Database.open(str(own_folder / "record.db"))
    found = {s.name: database.study(s.name).spec.setting.source for s in database.studies()}
    database.close()
    assert {n: (s.batch_size, s.seq_len) for n, s in found.items()} == {
        "s@1x128": (1, 128),
        "s@2x64": (2, 64),
    }
