"""The Python entry points on a small model: by file, by database, by name, as a back end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import thunder
import torch
from thunder.dev_utils.debug_transform import DebugTransform

from thunder_tune.errors import NotFoundError, RecipeError
from thunder_tune.integration import best_recipe, load_recipe
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import capture, model_key
from thunder_tune.recipes import write_recipe
from thunder_tune.storage import Database
from thunder_tune.testing.small_models import DictModel, TinyTransformer
from thunder_tune.values.job import Setting
from thunder_tune.values.recipe import Recipe, TunedPlan, with_all_shapes
from thunder_tune.values.source import ModelSource
from thunder_tune.values.study import StudySpec

SHAPE = (2, 6, 16)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TinyTransformer(depth=1).eval().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(SHAPE)


@pytest.fixture
def recipe(model, x):
    found = capture(model, (x,), {})
    plan = TunedPlan(
        signature=found.signature,
        program_hash=found.program.hash,
        program_loose_hash=found.program.loose_hash,
        assignment={"program": "composed"},
        classes={c.id: c.loose_id for c in found.program.classes},
    )
    return Recipe(
        model="small",
        source=ModelSource(name="small"),
        kind="composed",
        plans=(plan,),
        fingerprint=current_fingerprint("cpu"),
    )


@pytest.fixture
def database(tmp_path, monkeypatch, model, recipe):
    path = tmp_path / "studies.db"
    monkeypatch.setenv("THUNDER_TUNE_STORAGE", str(path))
    opened = Database.open()
    opened.create_study(StudySpec(name="s", setting=Setting(source=recipe.source)))
    key = model_key(model, recipe.plans[0].signature)
    opened.save_recipe("s", recipe, model_key=key)
    opened.close()
    return path


def test_from_a_file(tmp_path, model, x, recipe):
    path = tmp_path / "small.recipe.json"
    write_recipe(recipe, path)
    tuned = thunder.compile(model, recipe=load_recipe(path, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert tuned.tuning.applied == 1.0


def test_with_thunders_transforms(tmp_path, model, x, recipe):
    path = tmp_path / "small.recipe.json"
    write_recipe(recipe, path)
    seen = []

    def note(bsym, *args, **kwargs):
        seen.append(bsym.sym.name)
        return ""

    transforms = [DebugTransform(pre_callback=note)]
    tuned = thunder.compile(model, recipe=load_recipe(path, transforms=transforms))
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert "linear" in seen
    assert tuned.tuning.applied == 1.0


def test_from_the_database(database, model, x, recipe):
    found = best_recipe(model, (x,), study="s")
    assert found.recipe.digest == recipe.digest
    for inputs in (x, [x], ((x,), {})):
        assert best_recipe(model, inputs).recipe.digest == recipe.digest
    missed = (
        r"no recipe for TinyTransformer on inputs float32\[9,6,16\]: there is one for float32\[2,6"
    )
    with pytest.raises(NotFoundError, match=missed):
        best_recipe(model, (torch.randn(9, 6, 16),))
    with pytest.raises(NotFoundError, match=r"no recipe for DictModel on inputs .*: tune it"):
        best_recipe(DictModel(), {"x": torch.randn(2, 8), "scale": torch.randn(8)})


def test_by_the_name_tuned(database, model, x):
    tuned = thunder.compile(model, recipe="tuned")
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
        torch.testing.assert_close(tuned(x), model(x))
    assert tuned.tuning.applied == 1.0


def test_as_a_back_end_of_torch_compile(tmp_path, model, x, recipe):
    path = tmp_path / "small.recipe.json"
    write_recipe(recipe, path)
    options = {"recipe": str(path), "strict": True}
    compiled = torch.compile(model, backend="thunder_tune", options=options, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_the_back_end_needs_a_recipe(model, x):
    from thunder_tune.integration import torch_backend

    with pytest.raises(RecipeError, match="needs options="):
        torch_backend(None, [])


def test_a_run_over_several_shapes_is_found_by_its_name_and_by_any_shape(database, model, recipe):
    other = replace(recipe.plans[0], signature="float32[9,6,16]")
    part = replace(recipe, plans=(other,), source=replace(recipe.source, batch_size=9))
    together = with_all_shapes([recipe, part])
    opened = Database.open()
    for name, plan in (("m@2", recipe.plans[0]), ("m@9", other)):
        opened.create_study(StudySpec(name=name, setting=Setting(source=recipe.source)))
        opened.save_recipe(name, together, model_key=model_key(model, plan.signature))
    opened.close()
    for inputs in (torch.randn(2, 6, 16), torch.randn(9, 6, 16)):
        assert best_recipe(model, inputs, study="m").recipe == together
    tuned = thunder.compile(model, recipe="tuned")
    with torch.no_grad():
        tuned(torch.randn(9, 6, 16))
        tuned(torch.randn(2, 6, 16))
    assert tuned.tuning.recipe == together
    assert set(tuned.tuning.applied_by_shape) == {"float32[2,6,16]", "float32[9,6,16]"}
