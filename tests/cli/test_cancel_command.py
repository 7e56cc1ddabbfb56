from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.storage import Database
from thunder_tune.study import cancelling
from thunder_tune.study.lease import holding
from thunder_tune.testing.pool_contract import PATIENCE_S
from thunder_tune.testing.sample_values import make_spec


@pytest.fixture
def stored(own_folder):
    database = Database.open()
    yield database
    database.close()


def start(database, study):
    """Run a study in another process, until its first result is stored."""
    process = subprocess.Popen(
        [sys.executable, "-m", "thunder_tune.testing.study_driver", database.url, study, "400"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert any(line.startswith("stored ") for line in process.stdout)
    return process


def test_a_running_study_ends_and_the_command_to_go_on_is_printed(stored, capsys):
    process = start(stored, "study")
    assert run(["cancel", "study", "--json"]) == 0
    captured = capsys.readouterr()
    assert process.wait(PATIENCE_S) == 130
    document = json.loads(captured.out)
    assert document == {
        "study": "study",
        "how": "ended",
        "state": "interrupted",
        "trials": len(stored.trials("study", "search")),
        "host": document["host"],
        "process_id": process.pid,
        "since": document["since"],
    }
    assert f"process {process.pid} on" in captured.err
    assert "kept; to go on: thunder-tune run --study study" in captured.err
    process.stdout.close()


def test_a_name_of_several_shapes_means_the_one_that_runs(stored, capsys):
    stored.create_study(make_spec("net@1"))
    stored.update_study("net@1", state="done")
    process = start(stored, "net@8")
    assert run(["cancel", "net"]) == 0
    assert process.wait(PATIENCE_S) == 130
    said = capsys.readouterr().out
    assert said.startswith("study net@8: interrupted where it ran")
    assert said.endswith("to go on: thunder-tune run --study net\n")
    process.stdout.close()


def test_a_controller_that_is_dead_is_told(stored, capsys):
    process = start(stored, "study")
    process.kill()
    process.wait(PATIENCE_S)
    assert run(["cancel", "study"]) == 0
    assert f"process {process.pid} on" in (said := capsys.readouterr().out)
    assert "was dead; interrupted," in said
    process.stdout.close()


def test_a_controller_that_hangs_is_status_1(stored, capsys, monkeypatch):
    monkeypatch.setattr(cancelling.cancel_study, "__kwdefaults__", {"patience_s": 0.0})
    stored.create_study(make_spec("study"))
    with holding(stored, "study"):
        assert run(["cancel", "study"]) == 1
    assert f"process {os.getpid()} on" in (said := capsys.readouterr().out)
    assert "was asked to end and has not yet" in said


@pytest.mark.parametrize("state", ["done", "failed", "interrupted"])
def test_a_study_that_does_not_run_is_status_2(stored, capsys, state):
    stored.create_study(make_spec("study"))
    stored.update_study("study", state=state)
    assert run(["cancel", "study"]) == 2
    told = f"error: study 'study' is not running (state: {state}): there is nothing to cancel\n"
    assert capsys.readouterr().err == told


def test_an_unknown_study_is_status_2_with_close_names(stored, capsys):
    stored.create_study(make_spec("resnet"))
    assert run(["cancel", "resnat"]) == 2
    assert "'resnat' does not exist: did you mean 'resnet'?" in capsys.readouterr().err
