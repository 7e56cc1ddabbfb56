from __future__ import annotations

import json
from dataclasses import replace

import pytest

from thunder_tune.errors import ConflictError, RecipeError
from thunder_tune.recipes import Difference, differences, read_recipe, write_recipe
from thunder_tune.values.codec import digest, to_data
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.recipe import Evidence, Recipe, TunedPlan, with_all_shapes
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Accuracy

RECIPE = Recipe(
    model="mlp",
    source=ModelSource(name="mlp"),
    kind="composed",
    plans=(
        TunedPlan(
            signature="(float32[1, 256])",
            program_hash="a" * 64,
            program_loose_hash="b" * 64,
            assignment={"executor:linear-1": "torch"},
        ),
    ),
    fingerprint=Fingerprint(device="cpu", capability="avx2"),
)


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "m.recipe.json"
    write_recipe(RECIPE, path)
    assert read_recipe(path) == RECIPE
    assert json.loads(path.read_text())["digest"] == RECIPE.digest
    assert [p.name for p in tmp_path.iterdir()] == ["m.recipe.json"]


def test_a_recipe_of_another_tool_run_replaces_the_old_one(tmp_path):
    path = tmp_path / "m.recipe.json"
    path.write_text("old")
    write_recipe(RECIPE, path)
    assert read_recipe(path) == RECIPE


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_cut_short(tmp_path, share):
    path = tmp_path / "m.json"
    write_recipe(RECIPE, path)
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(RecipeError, match=r"is damaged"):
        read_recipe(path)


def changed(tmp_path, **changes):
    path = tmp_path / "m.json"
    write_recipe(RECIPE, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize("changes", [{"plans": 3}, {"kind": "best"}, {"fingerprint": None}])
def test_fields_of_other_types(tmp_path, changes):
    with pytest.raises(RecipeError, match=r"is damaged: not a valid Recipe"):
        read_recipe(changed(tmp_path, **changes))


def test_a_changed_choice_is_noticed(tmp_path):
    with pytest.raises(RecipeError, match=r"was altered"):
        read_recipe(changed(tmp_path, policy="any"))


def test_a_recipe_by_hand_needs_no_digest(tmp_path):
    assert read_recipe(changed(tmp_path, policy="any", digest=None)).policy == "any"


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_another_version(tmp_path, version):
    with pytest.raises(RecipeError, match=r"has schema version .*this release reads 1 and 2"):
        read_recipe(changed(tmp_path, schema_version=version))


@pytest.mark.parametrize("text", ["[]", "3", "null", '"recipe"'])
def test_json_of_something_else(tmp_path, text):
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"not a JSON object"):
        read_recipe(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "m.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(RecipeError, match=r"cannot be read"):
        read_recipe(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(RecipeError, match=r"absent.json does not exist"):
        read_recipe(tmp_path / "absent.json")


def test_writing_into_nothing(tmp_path):
    with pytest.raises(RecipeError, match=r"cannot write recipe .*No such file"):
        write_recipe(RECIPE, tmp_path / "absent" / "m.json")


def with_classes(classes, **assignment):
    plan = replace(RECIPE.plans[0], classes=classes, assignment=assignment)
    return replace(RECIPE, plans=(plan,))


def test_recipes_are_compared_choice_by_choice():
    one = with_classes({"linear-1": "linear-l"}, program="composed", **{"executor:linear-1": "a"})
    two = with_classes(
        {"linear-1": "linear-l"},
        program="composed",
        cuda_graphs="whole",
        **{"executor:linear-1": "b"},
    )
    assert differences(one, two) == (
        Difference(dimension="executor:linear-1", here="a", there="b"),
        Difference(dimension="cuda_graphs", here="", there="whole"),
    )
    assert differences(one, one) == ()


def test_classes_of_another_shape_are_compared_in_order():
    one = with_classes(
        {"linear-1": "linear-l", "linear-2": "linear-l"},
        **{"executor:linear-1": "a", "executor:linear-2": "a"},
    )
    two = with_classes(
        {"linear-8": "linear-l", "linear-9": "linear-l", "conv-3": "conv-l"},
        **{"executor:linear-8": "a", "executor:linear-9": "b", "executor:conv-3": "c"},
    )
    assert differences(one, two) == (
        Difference(dimension="executor:linear-2", here="a", there="b"),
        Difference(dimension="executor:conv-3", here="", there="c"),
    )


def test_a_file_of_version_1_keeps_its_digest(tmp_path):
    document = to_data(replace(RECIPE, schema_version=1))
    for plan in document["plans"]:
        del plan["tuning"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"digest": digest(document)[:12], **document}))
    assert read_recipe(path) == replace(RECIPE, schema_version=1)


def test_a_digest_from_before_tensors_were_named_is_kept(tmp_path):
    accuracy = Accuracy(error_ratio=1.0, relative_error=0.0, cosine=1.0)
    evidence = Evidence(
        study="s",
        date="2026-12-01",
        latency_ms=1.0,
        ci95_ms=(1.0, 1.0),
        verdict="tie",
        speedup=1.0,
        speedup_ci95=(1.0, 1.0),
        accuracy=accuracy,
    )
    recipe = replace(RECIPE, evidence=evidence)
    document = to_data(recipe)
    del document["evidence"]["accuracy"]["tensors"]
    del document["plans"][0]["tuning"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"digest": digest(document)[:12], **document}))
    assert read_recipe(path) == recipe


def for_batch(size, **changes):
    plan = replace(RECIPE.plans[0], signature=f"float32[{size},3]")
    source = replace(RECIPE.source, batch_size=size)
    return replace(RECIPE, plans=(plan,), source=source, **changes)


def test_recipes_for_several_shapes_are_one_file_and_come_apart_again(tmp_path):
    parts = (for_batch(1), for_batch(8, kind="whole-program", evidence=None), for_batch(64))
    together = with_all_shapes(parts)
    assert [plan.signature for plan in together.plans] == [f"float32[{n},3]" for n in (1, 8, 64)]
    assert (together.source, together.kind) == (parts[0].source, parts[0].kind)
    write_recipe(together, tmp_path / "m.json")
    read = read_recipe(tmp_path / "m.json")
    assert read == together
    assert read.by_shape == parts
    assert [part.digest for part in read.by_shape] == [part.digest for part in parts]
    assert with_all_shapes([together]) == together
    assert with_all_shapes(parts[:1]) == parts[0]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": "another"}, "models"),
        ({"policy": "any"}, "policies"),
        ({"fingerprint": replace(RECIPE.fingerprint, capability="sm_70")}, "machines"),
    ],
)
def test_recipes_that_do_not_belong_together(changes, what):
    with pytest.raises(ConflictError, match=f"are of different {what}: tune all shapes alike"):
        with_all_shapes([for_batch(1), for_batch(8, **changes)])
