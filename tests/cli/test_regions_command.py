from __future__ import annotations

import json

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.values.replay import read_table

RUN = ["run", "--model", "mlp", "--device", "cpu", "--trials", "4", "--study", "s", "--screening"]


@pytest.fixture(autouse=True)
def with_study(use_pool, capsys):
    """A study that measured its classes alone is in the database."""
    use_pool()
    run(RUN)
    capsys.readouterr()


def printed(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_regions_lists_every_choice_of_every_class(capsys):
    assert run(["regions", "s", "--json"]) == 0
    rows = printed(capsys)["regions"]
    assert {row["choice"] for row in rows} >= {"torch", "inductor"}
    assert all(row["latency_ms"] > 0.0 and row["failure"] is None for row in rows)
    assert run(["regions", "s"]) == 0
    out = capsys.readouterr().out
    assert "1.00x" in out
    assert all(str(row["class"]) in out for row in rows)


def test_show_has_predicted_beside_measured(capsys):
    assert run(["show", "s", "--json"]) == 0
    trials = printed(capsys)["trials"]
    composed = [t for t in trials if t["role"] == "search" and t["state"] == "complete"]
    assert composed
    assert all(t["predicted_ms"] is not None for t in composed)
    assert all(t["predicted_ms"] is None for t in trials if t["role"] == "baseline")
    assert run(["show", "s"]) == 0
    assert "predicted ms" in capsys.readouterr().out


def test_record_writes_a_table(capsys, tmp_path):
    out = tmp_path / "table.json"
    assert run(["record", "s", "--out", str(out), "--json"]) == 0
    document = printed(capsys)
    table = read_table(out)
    assert document["plans"] == len(table.plans) > 0
    assert document["measured_alone"] == len(table.measurements) > 0
    assert run(["record", "nobody", "--out", str(out)]) != 0
    assert "'nobody' does not exist" in capsys.readouterr().err
