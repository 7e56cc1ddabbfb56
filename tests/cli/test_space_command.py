from __future__ import annotations

import json

from thunder_tune.cli.exits import run
from thunder_tune.models import catalogue
from thunder_tune.values.trial import Failure

SPACE = ["space", "--model", "mlp", "--device", "cpu"]


def test_the_object_of_a_space(use_pool, capsys):
    pool = use_pool()
    assert run([*SPACE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["program", "dimensions"]
    program = document["program"]
    assert list(program) == ["front_end", "hash", "ops", "classes"]
    assert program["hash"] == pool.description.program.hash
    assert [op["name"] for op in program["ops"]] == ["fake.linear", "fake.glue"]
    assert program["classes"][0] == {
        "id": "linear-1",
        "kind": "linear",
        "count": 1,
        "ops": ["fake.linear"],
    }
    for dimension in document["dimensions"]:
        assert list(dimension) == ["name", "family", "choices", "excluded"]
    assert document["dimensions"][1]["choices"] == ["torch", "fast"]


def test_the_table_of_a_space(use_pool, capsys):
    use_pool()
    assert run(SPACE) == 0
    out = capsys.readouterr().out
    for text in ("2 ops, 2 classes", "linear-1", "executor:linear-1", "torch, fast", "20 assign"):
        assert text in out


def test_a_model_that_raises_is_status_one(use_pool, capsys):
    use_pool(failure=Failure(kind="model", phase="load", message="'m:f' raised KeyError: 'w'"))
    assert run(SPACE) == 1
    assert capsys.readouterr().err == "error: 'm:f' raised KeyError: 'w'\n"


def test_models_lists_all(capsys):
    assert run(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [m["name"] for m in listed] == [info.name for info in catalogue()]
    assert run(["models"]) == 0
    assert "vit_b_16" in capsys.readouterr().out
