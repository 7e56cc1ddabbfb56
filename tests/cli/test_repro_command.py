from __future__ import annotations

import json
from pathlib import Path

import pytest

from thunder_tune.cli.exits import run
from thunder_tune.cli.repro_script import script_of
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Candidate, Failure, TrialResult

RUN = ["run", "--model", "mlp", "--device", "cpu", "--trials", "4", "--study", "s", "--seed", "3"]


@pytest.fixture
def with_study(use_pool, capsys):
    use_pool(failures={("fuser:glue-1", "inductor"): "compile"})
    run(RUN)
    capsys.readouterr()


def names_in(path: Path) -> dict:
    """Run a script as a module: everything but its main."""
    names = {"__name__": "script"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


@pytest.mark.usefixtures("with_study")
def test_a_script_has_the_source_and_exactly_the_assignment_of_its_trial(capsys):
    assert run(["show", "s", "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    for trial in trials:
        number = trial["number"]
        assert run(["repro", "s", str(number), "--out", "made.py", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document == {"study": "s", "trial": number, "script": "made.py"}
        names = names_in(Path("made.py"))
        assert names["ASSIGNMENT"] == trial["assignment"]
        assert names["SOURCE"] == ModelSource(name="mlp", device="cpu", seed=3)
        assert (names["POLICIES"], names["METRIC"]) == (("same",), None)
        assert names["PROGRAM"] == "f" * 64
        stored = "planted compile" if trial["failure"] else f"{trial['latency_ms']:.4g} ms"
        assert stored in names["__doc__"]


@pytest.mark.usefixtures("with_study")
def test_the_default_file_is_named_after_the_trial(capsys):
    assert run(["repro", "s", "2"]) == 0
    assert capsys.readouterr().out == "script: trial2.py\n"
    assert Path("trial2.py").is_file()


def test_whatever_a_failure_says_the_script_is_python(tmp_path):
    message = 'a """ quote, a \\N{no} backslash,\na second line and "the end"'
    result = TrialResult(
        candidate=Candidate(assignment={"a'b": 'c"d'}, plan_key="k"),
        role="search",
        state="failed",
        failure=Failure(kind="compile", phase="compile", message=message),
    )
    source = ModelSource(name="it's:factory", inputs='a":b', search_path=("C:\\new",))
    text = script_of(
        '"""',
        3,
        result,
        setting=Setting(source=source, metric=("m:f", 0.5)),
        program_hash="0" * 64,
        front_end="none",
        fingerprint=Fingerprint(device="cpu", capability="none"),
    )
    path = tmp_path / "script.py"
    path.write_text(text)
    names = names_in(path)
    assert (names["SOURCE"], names["ASSIGNMENT"]) == (source, {"a'b": 'c"d'})
    assert names["METRIC"] == ("m:f", 0.5)
    assert 'front_end="auto"' in text


@pytest.mark.usefixtures("with_study")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s", "99"], "study 's' has no trial 99: its trials are 0 to 7, see thunder-tune show s"),
        (["s", "-1"], "thunder-tune repro"),
        (["other", "1"], "other"),
        (["s", "x"], "valid integer"),
        (["s", "1", "--out", "no/folder.py"], "script 'no/folder.py' cannot be written"),
    ],
)
def test_wrong_words_are_status_two(capsys, words, message):
    assert run(["repro", *words]) == 2
    assert message in capsys.readouterr().err
