"""Rows 0, 1, 2 and 130 of the table of exit statuses; `test_run_command` has those of studies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thunder_tune.cli import exits, services
from thunder_tune.cli.exits import run

MODULE = """
import torch

def factory():
    return torch.nn.Linear(4, 2)

def inputs():
    return torch.randn(1, 4)
"""
CPU = ["--device", "cpu"]
METRIC = ["--metric-min", "1", "--metric"]


def error_line(capsys) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "--model is missing"),
        ([], "Missing command: see thunder-tune --help"),
        (["db"], "Missing command: see thunder-tune db --help"),
        (["db", "nothing"], "No such command 'nothing': see thunder-tune db --help"),
        (["db", "export"], "Missing argument 'FILE': see thunder-tune db export --help"),
        (["db", "import", "/nothing"], "/nothing: No such file or directory: name a file that"),
        (["run", "--model", "vit_b16", *CPU], "unknown model 'vit_b16': did you mean vit_b_16"),
        (["space", "--model", "nothing_like_it", *CPU], "unknown model 'nothing_like_it'"),
        (["run", "--model", "mlp", *CPU, "--batch-size", "0"], "batch size 0: must be at least 1"),
        (["run", "--model", "mlp", *CPU, "--batch-size", "-3"], "batch size -3"),
        (["run", "--model", "mlp", *CPU, "--batch-size", "many"], "Invalid value for '--batch"),
        (["run", "--model", "mlp", *CPU, "--seq-len", "0"], "sequence length 0"),
        (["run", "--model", "mlp", *CPU, "--dtype", "float8"], "unknown dtype 'float8': use one"),
        (["run", "--model", "mlp", "--device", "tpu"], "unknown device 'tpu': use one of cpu"),
        (["run", "--model", "mlp", *CPU, "--mode", "eval"], "unknown mode 'eval'"),
        (["run", "--model", "mlp", *CPU, "--policy", "exact"], "'exact'"),
        (["run", "--model", "mlp", *CPU, "--preset", "best"], "unknown preset 'best': use one"),
        (["run", "--model", "mlp", *CPU, "--trials", "-1"], "trials -1: must be at least 0"),
        (["run", "--model", "mlp", *CPU, "--time-budget", "soon"], "duration 'soon': write 90"),
        (["run", "--model", "mlp", *CPU, "--workers", "0"], "workers 0: must be at least 1"),
        (["run", "--model", "mlp", *CPU, "--metric", "a:b"], "belong together"),
        (["run", "--model", "mlp", *CPU, *METRIC, "users:fn"], "metric 'users:fn' cannot be impo"),
        (["run", "--model", "mlp", *CPU, *METRIC, "absent:fn"], "No module named 'absent'"),
        (["run", "--model", "mlp", *CPU, "--study", "a/b"], "study name 'a/b'"),
        (["run", "--model", "mlp", *CPU, "--storage", "/proc/x/y.db"], "/proc/x/y.db"),
        (["run", "--model", "mlp", *CPU, "--storage", "nosql://x/y"], "nosql"),
        (["run", "--model", "absent_module:f", "--inputs", "absent_module:g"], "absent_module"),
        (["run", "--model", "users:factory", *CPU], "needs --inputs"),
        (["run", "--model", "users:fact", "--inputs", "users:inputs"], "did you mean factory"),
        (["run", "--study", "absent"], "study 'absent' does not exist"),
        (["best", "absent"], "study 'absent' does not exist"),
        (["show", "absent"], "study 'absent' does not exist"),
        (["export", "absent"], "study 'absent' does not exist"),
        (["bench", "absent"], "study 'absent' does not exist"),
        (["bench", "absent.recipe.json"], "recipe absent.recipe.json does not exist"),
        (["bench", "half.recipe.json"], "recipe half.recipe.json is damaged"),
        (["status"], "no study is stored"),
        (["status", "absent"], "study 'absent' does not exist"),
        (["runn"], "No such command 'runn'"),
        (["run", "--modle", "mlp"], "No such option"),
        (["best"], "Missing argument 'STUDY'"),
    ],
)
def test_wrong_words_are_one_line_and_status_two(use_pool, capsys, arguments, message):
    pool = use_pool()
    Path("users.py").write_text(MODULE)
    Path("half.recipe.json").write_text('{"schema_version": 1, "model": "m')
    assert run(arguments) == 2
    assert message in error_line(capsys)
    assert pool.submitted == []


@pytest.mark.parametrize("command", ["run", "space"])
def test_a_users_module_that_raises_is_status_one(use_pool, capsys, command):
    use_pool()
    Path("raising_module.py").write_text("raise RuntimeError('no weights')\n")
    reference = "raising_module:factory"
    assert run([command, "--model", reference, "--inputs", reference, *CPU]) == 1
    assert "RuntimeError: no weights" in error_line(capsys)


def test_with_json_an_error_is_an_object_too(use_pool, capsys):
    use_pool()
    assert run(["best", "absent", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": captured.err.strip().removeprefix("error: ")}


def test_with_json_an_error_of_run_has_all_keys(use_pool, capsys):
    use_pool()
    assert run(["run", "--model", "vit_b16", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["best"] is None
    assert document["baselines"] == []
    assert document["error"].startswith("unknown model 'vit_b16'")


def test_a_defect_is_one_line_and_status_one(use_pool, capsys, monkeypatch):
    use_pool()

    def broken(url: str | None) -> None:
        raise KeyError("lost\nkey")

    monkeypatch.setattr(services, "database", broken)
    assert run(["studies"]) == 1
    assert "unexpected KeyError" in error_line(capsys)


def test_the_traceback_is_shown_on_demand(use_pool, capsys, monkeypatch):
    use_pool()
    monkeypatch.setenv(exits.DEBUG_VARIABLE, "1")
    assert run(["best", "absent"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_anywhere_is_130(use_pool, monkeypatch):
    use_pool()

    def interrupted(url: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(services, "database", interrupted)
    assert run(["studies"]) == 130


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_is_zero(capsys, arguments):
    assert run(arguments) == 0
    assert capsys.readouterr().out


def test_every_command_of_this_version_is_listed(capsys):
    run(["--help"])
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "}
    assert {
        "run", "space", "models", "studies", "status", "best", "show", "export", "bench",
        "doctor", "db",
    } <= listed  # fmt: skip


def test_the_statuses_reach_the_shell(tmp_path):
    program = [sys.executable, "-m", "thunder_tune.cli"]
    environment = {**os.environ, "THUNDER_TUNE_STORAGE": str(tmp_path / "record.db")}

    def status(*arguments: str) -> int:
        return subprocess.run(
            [*program, *arguments], env=environment, capture_output=True, check=False
        ).returncode

    assert status("studies") == 0
    assert status("best", "absent") == 2
    assert status("nonsense") == 2


def test_help_loads_no_heavy_module():
    script = (
        "import sys; from thunder_tune.cli.exits import run; run(['run', '--help']);"
        "print([m for m in ('torch', 'ray', 'sqlalchemy', 'optuna', 'thunder') "
        "if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
