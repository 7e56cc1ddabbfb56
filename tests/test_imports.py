from __future__ import annotations

import subprocess
import sys

import pytest

import thunder_tune

HEAVY = ("torch", "ray", "sqlalchemy", "optuna", "thunder", "rich", "pydantic")


def output_of(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy():
    script = f"import sys, thunder_tune; print([m for m in {HEAVY} if m in sys.modules])"
    assert output_of(script) == "[]"


@pytest.mark.parametrize("module", ["errors", "cli", "cli.app", "values.study"])
def test_light_modules_stay_light(module: str):
    script = (
        f"import sys, thunder_tune.{module};print([m for m in {HEAVY[:5]} if m in sys.modules])"
    )
    assert output_of(script) == "[]"


def test_the_public_names():
    assert thunder_tune.__all__ == ["__version__", "best_recipe", "load_recipe"]


@pytest.mark.parametrize("name", thunder_tune.__all__)
def test_every_public_name_is_there(name: str):
    assert name in dir(thunder_tune)
    assert getattr(thunder_tune, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'thunder_tune' has no attribute 'load_recipes'"):
        _ = thunder_tune.load_recipes


def test_the_recipe_named_tuned_is_known_where_thunder_is_loaded():
    script = (
        "import thunder, thunder_tune; from thunder.recipes import get_recipes;"
        "print('tuned' in get_recipes())"
    )
    assert output_of(script) == "True"
