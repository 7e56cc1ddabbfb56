from __future__ import annotations

import os

import pytest

from thunder_tune.cli import exits, worker_command
from thunder_tune.cli.doctor_command import Check
from thunder_tune.machine import current_fingerprint


@pytest.fixture
def become(monkeypatch):
    """Keep what the command would become."""
    found = []
    monkeypatch.setattr(worker_command, "become", lambda *what: found.append(what))
    return found


def test_joins_a_cluster_and_says_what_this_machine_is(become, capsys):
    assert exits.run(["worker", "head:6379", "--cpus", "2", "--gpus", "0"]) == exits.DONE
    ((words, environment),) = become
    assert os.access(words[0], os.X_OK)
    assert words[1:] == [
        "start",
        "--address=head:6379",
        "--num-cpus=2",
        "--num-gpus=0",
        f"--object-store-memory={100 * 2**20}",
        "--block",
        "--disable-usage-stats",
    ]
    assert environment["RAY_memory_monitor_refresh_ms"] == "0"
    out, err = capsys.readouterr()
    assert out == ""
    assert f"fingerprint: {current_fingerprint('cpu').strict_key[:12]}\n" in err
    assert "lightning-thunder 0.2.6" in err


def test_starts_a_cluster(become):
    assert exits.run(["worker", "--head", "--port", "0"]) == exits.DONE
    ((words, _),) = become
    assert words[1:4] == ["start", "--head", "--port=0"]


def test_what_the_user_has_set_for_ray_holds(become, monkeypatch):
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "250")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    exits.run(["worker", "--head"])
    ((_, environment),) = become
    assert environment["RAY_memory_monitor_refresh_ms"] == "250"
    assert environment["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either the HOST:PORT of a cluster to join, or --head"),
        (["head:6379", "--head"], "give either the HOST:PORT of a cluster to join, or --head"),
        (["head"], "worker 'head': must be HOST:PORT, such as head:6379"),
    ],
)
def test_wrong_words_are_refused(become, capsys, words, said):
    assert exits.run(["worker", *words]) == exits.WRONG_WORDS
    assert said in capsys.readouterr().err
    assert become == []


def test_a_machine_that_lacks_something_does_not_join(become, capsys, monkeypatch):
    missing = Check(
        name="torch", state="missing", detail="pip install thunder-tune", is_required=True
    )
    monkeypatch.setattr(worker_command.doctor_command, "packages", lambda: [missing])
    assert exits.run(["worker", "head:6379"]) == exits.FAILED
    assert (
        "error: this machine cannot run trials: torch is missing: pip install thunder-tune"
        in capsys.readouterr().err
    )
    assert become == []
