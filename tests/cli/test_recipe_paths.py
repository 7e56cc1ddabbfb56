from __future__ import annotations

from pathlib import Path

import pytest

from thunder_tune.cli.recipe_paths import check_writable, composed_path, default_path
from thunder_tune.errors import InputError


@pytest.mark.parametrize(
    ("model", "name"),
    [("vit_b_16", "vit_b_16.recipe.json"), ("my.models:make", "my.models.make.recipe.json")],
)
def test_the_default_name(model, name):
    assert default_path(model) == Path(name)


@pytest.mark.parametrize(
    ("best", "composed"),
    [
        ("a/m.recipe.json", "a/m.composed.recipe.json"),
        ("m.v2.json", "m.v2.composed.json"),
        ("m", "m.composed"),
    ],
)
def test_the_composed_recipe_lies_beside(best, composed):
    assert composed_path(Path(best)) == Path(composed)


def test_a_folder_is_no_recipe_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written: choose another --out"):
        check_writable(tmp_path)


def test_a_file_in_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written: choose another --out"):
        check_writable(tmp_path / "absent" / "m.json")
    check_writable(tmp_path / "m.json")
