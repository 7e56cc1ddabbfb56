from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.recipes import read_recipe
from thunder_tune.storage import Database
from thunder_tune.study.lease import holding, this_process

RUN = ["run", "--model", "mlp", "--device", "cpu", "--trials", "4", "--study", "s"]


@pytest.fixture
def with_study(use_pool, capsys):
    """A study with one failing choice is in the database; what it printed is forgotten."""
    use_pool(failures={("fuser:glue-1", "inductor"): "compile"})
    run(RUN)
    capsys.readouterr()


def printed(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("with_study")
def test_studies_lists_the_study(capsys):
    assert run(["studies", "--json"]) == 0
    (study,) = printed(capsys)["studies"]
    assert (study["name"], study["model"], study["state"]) == ("s", "mlp", "done")
    assert study["trials"] == 4
    assert run(["studies"]) == 0
    out = capsys.readouterr().out
    assert "s " in out
    assert "mlp" in out


@pytest.mark.usefixtures("with_study")
@pytest.mark.parametrize("named", [["s"], []])
def test_status_counts_trials(capsys, named):
    assert run(["status", *named, "--json"]) == 0
    document = printed(capsys)
    assert document["requested"] == 4
    assert (document["complete"], document["failed"], document["pruned"]) == (2, 2, 0)
    assert document["failed_by_kind"] == {"compile": 2}
    assert document["error"] is None
    assert document["controller"] is None
    assert run(["status", *named]) == 0
    assert "2 complete, 2 failed (compile 2), 0 pruned" in capsys.readouterr().out


@pytest.mark.usefixtures("with_study")
def test_best_prints_the_recipe(capsys):
    assert run(["best", "s", "--json"]) == 0
    document = printed(capsys)
    assert document["digest"] == read_recipe(Path("mlp.recipe.json")).digest
    assert run(["best", "s"]) == 0
    out = capsys.readouterr().out
    assert document["digest"] in out
    assert "executor:linear-1" in out
    assert "torch.compile:max-autotune" in out


@pytest.mark.usefixtures("with_study")
def test_show_prints_trials_and_groups_failures(capsys):
    assert run(["show", "s", "--json"]) == 0
    document = printed(capsys)
    assert len(document["trials"]) == 8
    (group,) = document["failures"]
    assert (group["kind"], group["times"]) == ("compile", 2)
    assert run(["show", "s"]) == 0
    assert "planted compile" in capsys.readouterr().out


def test_disturbed_measurements_are_shown(use_pool, capsys):
    use_pool(marks=("host-busy",))
    run(RUN)
    assert "disturbed, of 3 processes: host-busy in 3" in capsys.readouterr().out
    assert run(["show", "s", "--json"]) == 0
    assert {tuple(t["marks"]) for t in printed(capsys)["trials"]} == {("host-busy",)}
    assert run(["show", "s"]) == 0
    assert "host-busy" in capsys.readouterr().out


@pytest.mark.usefixtures("with_study")
def test_export_writes_the_best_recipe(capsys):
    assert run(["export", "s", "--out", "again.json", "--json"]) == 0
    document = printed(capsys)
    assert document["recipe"] == "again.json"
    assert read_recipe(Path("again.json")) == read_recipe(Path("mlp.recipe.json"))


def test_a_study_without_a_recipe_says_how_to_get_one(use_pool, capsys):
    use_pool(interrupt_at=3)
    run(RUN)
    capsys.readouterr()
    assert run(["export", "s"]) == 2
    err = capsys.readouterr().err
    assert "(interrupted) has no recipe yet: let it end with thunder-tune run --study s" in err


def test_status_of_an_interrupted_study_says_how_to_go_on(use_pool, capsys):
    use_pool(interrupt_at=8)
    run(RUN)
    capsys.readouterr()
    assert run(["status"]) == 0
    assert "to go on: thunder-tune run --study s" in capsys.readouterr().out


@pytest.fixture
def running(use_pool, capsys):
    """A study as its controller left it when it was killed, in a database of its own."""
    use_pool()
    run([*RUN, "--storage", "my studies.db"])
    database = Database.open("my studies.db")
    database.update_study("s", state="running")
    capsys.readouterr()
    yield database
    database.close()


def lines_of_status(capsys):
    assert run(["status", "--storage", "my studies.db"]) == 0
    return capsys.readouterr().out.splitlines()[3:]


TO_GO_ON = "thunder-tune run --study s --storage 'my studies.db'"


def test_status_of_a_dead_study_says_how_to_go_on(running, capsys):
    assert lines_of_status(capsys) == [f"to go on: {TO_GO_ON}"]
    dead = replace(this_process(), process_id=2**22 + 1)  # above the highest that there can be
    running.take_lease("s", dead)
    assert lines_of_status(capsys) == [f"run by: {dead}, which is dead", f"to go on: {TO_GO_ON}"]


def test_status_of_a_study_that_is_run_says_by_whom_and_how_to_end_it(running, capsys):
    with holding(running, "s"):
        found = running.lease("s")
        assert lines_of_status(capsys) == [
            f"run by: {found}",
            "to end it: thunder-tune cancel s --storage 'my studies.db'",
        ]


def test_status_of_a_study_that_is_run_elsewhere_says_how_to_go_on_too(running, capsys):
    running.take_lease("s", replace(this_process(), machine="another"))
    assert lines_of_status(capsys)[2] == f"to go on should it be dead: {TO_GO_ON}"


def test_upgrade_creates_the_database(use_pool, capsys, tmp_path):
    use_pool()
    assert run(["db", "upgrade", "--storage", "new.db"]) == 0
    assert "up to date: " in capsys.readouterr().out
    assert (tmp_path / "new.db").is_file()
