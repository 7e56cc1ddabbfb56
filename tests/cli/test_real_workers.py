"""Exit statuses 0, 1 and 130 with real models in real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import thunder_tune
from thunder_tune.cli.exits import run
from thunder_tune.testing.faulty_models import REFERENCE
from thunder_tune.testing.pool_contract import PATIENCE_S
from thunder_tune.values.study import baselines_for

PATH = {"PYTHONPATH": str(Path(thunder_tune.__file__).parents[1])}
OWN_CODE = """
import torch

def factory():
    return torch.nn.Linear(4, 2)

def inputs():
    return torch.randn(1, 4)
"""
VANISHING = OWN_CODE.replace(
    "    return torch.nn",
    """
    from pathlib import Path
    seen = Path(__file__).with_suffix(".seen")
    if seen.exists():
        raise FileNotFoundError("no checkpoint at weights.pt")
    seen.touch()
    return torch.nn""",
)

APPLY = """
import sys
import thunder
import torch
import thunder_tune
from thunder_tune.models import load

recipe = thunder_tune.load_recipe(sys.argv[1], strict=True)
loaded = load(recipe.recipe.source)
fast = thunder.compile(loaded.model, recipe=recipe)
inputs = loaded.make_inputs(7)
with torch.no_grad():
    result, expected = (f(*inputs.args, **inputs.kwargs) for f in (fast, loaded.model))
torch.testing.assert_close(result, expected)
print(fast.tuning.applied)
"""


def test_a_study_from_the_model_to_a_recipe_and_a_script_that_new_processes_run(
    use_worker, capsys, monkeypatch
):
    # Inductor tries the compiler on each instruction set, for twelve seconds in every process.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    (use_worker / "own_code.py").write_text(OWN_CODE)
    model = ["--model", "own_code:factory", "--inputs", "own_code:inputs", "--device", "cpu"]
    assert run(["run", *model, "--trials", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trials"]["complete"] == 1
    assert document["capture"]["times"] == 1
    assert [b["failure"] for b in document["baselines"]] == [None] * len(baselines_for("cpu"))
    assert document["best"]["verdict"] in ("faster", "tie")
    composed = document["best_composed"]
    assert composed["applied"] == 1.0
    done = python("-c", APPLY, composed["recipe"])
    assert (done.stdout, done.returncode) == ("1.0\n", 0), done.stderr
    trial = len(baselines_for("cpu"))
    assert run(["repro", document["study"], str(trial)]) == 0
    done = python(f"trial{trial}.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "captured by dynamo", "applied", "largest difference from eager", "error", "eager", "trial"
    ]  # fmt: skip
    assert lines[1].startswith("applied: 1.000")


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        env={**os.environ, **PATH},
        capture_output=True,
        text=True,
    )


def failed_run(capsys, model: str, inputs: str, *more: str) -> str:
    """Run, and return the one line that says why it failed; the study keeps it too."""
    words = ["run", "--model", model, "--inputs", inputs, "--device", "cpu", "--study", "s"]
    assert run([*words, *more, "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["best"] is None
    told = [line for line in captured.err.splitlines() if "error: " in line]
    assert told == [f"error: {document['error']}"]
    assert run(["status", "s", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["error"]) == ("failed", document["error"])
    return document["error"]


@pytest.mark.usefixtures("use_worker")
@pytest.mark.parametrize(
    ("factory", "inputs", "message"),
    [
        ("broken_factory", "make_inputs", "raised FileNotFoundError: planted: no checkpoint"),
        ("Raises", "make_inputs", "ValueError: planted: 7 heads do not divide 16"),
        ("NoTensor", "make_inputs", "without any tensor"),
        ("Constant", "make_inputs", "has one value in all its elements"),
        ("Good", "make_elsewhere", "made inputs on meta, the model is on cpu"),
    ],
)
def test_a_model_that_cannot_be_tuned_is_one_line(capsys, factory, inputs, message):
    assert message in failed_run(capsys, REFERENCE + factory, REFERENCE + inputs)


def test_nothing_measured_is_one_line_and_every_failure_is_kept(use_worker, capsys):
    (use_worker / "vanishing.py").write_text(VANISHING)
    error = failed_run(capsys, "vanishing:factory", "vanishing:inputs", "--trials", "0")
    assert error.startswith("nothing could be measured: all 4 attempts failed; eager: ")
    assert "FileNotFoundError: no checkpoint at weights.pt" in error
    assert run(["show", "s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [t["state"] for t in shown["trials"]] == ["failed"] * 4
    (group,) = shown["failures"]
    assert (group["kind"], group["times"]) == ("model", 4)
    assert "weights.pt" in Path(group["log"]).read_text()


class TestInterrupts:
    """Ctrl-C, and SIGTERM, the Ctrl-C of schedulers."""

    @pytest.fixture
    def running(self, own_folder, interruptible):
        """A study on a local Ray whose first baseline is measured and stored."""
        process = subprocess.Popen(
            [sys.executable, "-m", "thunder_tune.cli", "run", "--model", REFERENCE + "Good",
             "--inputs", REFERENCE + "make_inputs", "--device", "cpu", "--study", "s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **PATH},
            start_new_session=True,
        )  # fmt: skip
        yield process
        process.kill()
        process.communicate()

    @pytest.mark.ray
    @pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
    def test_everything_so_far_is_saved_and_the_command_to_go_on_is_printed(
        self, running, capsys, numbers
    ):
        assert any(line.startswith("baseline eager: ") for line in running.stderr)
        for number in numbers:  # to Ray's processes too, as a terminal or a scheduler does
            os.killpg(running.pid, number)
        _, errors = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 130
        assert "Traceback" not in errors
        (command,) = re.findall("^interrupted; to go on: thunder-tune (.*)$", errors, re.M)
        assert run(["show", "s", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["state"] == "interrupted"
        assert shown["trials"][0]["assignment"] == {"program": "eager"}
        assert shown["trials"][0]["state"] == "complete"
        assert run([*shlex.split(command), "--workers", "0"]) == 2  # it knows the study
        assert "workers 0" in capsys.readouterr().err
