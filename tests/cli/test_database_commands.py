from __future__ import annotations

import json

import optuna
import pytest

from thunder_tune.cli.exits import run
from thunder_tune.storage import Database
from thunder_tune.study.optuna_record import OptunaRecord
from thunder_tune.testing.sample_values import make_result, make_spec
from thunder_tune.values.space import SearchSpace


@pytest.fixture
def stored(tmp_path):
    """Store two studies; returns the place."""
    place = str(tmp_path / "tt.db")
    database = Database.open(place)
    for name in ("one", "two"):
        database.create_study(make_spec(name))
        database.add_trial(name, make_result())
        OptunaRecord(url=database.url, study=name, space=SearchSpace(dimensions=())).close()
    database.close()
    return place


def said(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["studies.jsonl", "studies.jsonl.gz"])
def test_studies_go_to_another_database_by_a_file(stored, tmp_path, capsys, name):
    file, other = str(tmp_path / name), str(tmp_path / "other.db")
    assert run(["db", "export", file, "--storage", stored, "--json"]) == 0
    assert said(capsys) == {"file": file, "studies": ["one", "two"]}
    assert run(["db", "import", file, "--storage", other, "--json"]) == 0
    assert said(capsys) == {"studies": ["one", "two"]}
    assert run(["show", "two", "--storage", other, "--json"]) == 0
    assert len(said(capsys)["trials"]) == 1
    assert run(["db", "import", file, "--storage", other]) == 2
    assert f"error: {file}: study 'one' is stored here already" in capsys.readouterr().err


def test_one_study_is_written_where_one_is_asked_for(stored, tmp_path, capsys):
    file = tmp_path / "one.jsonl"
    assert run(["db", "export", str(file), "--study", "one", "--storage", stored]) == 0
    assert "1 study written to" in capsys.readouterr().out
    assert '"two"' not in file.read_text()


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b damaged", b"\xff\xfe", b"{}"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.gz"])
def test_another_file_is_refused_in_one_line(tmp_path, capsys, content, name):
    (tmp_path / name).write_bytes(content)
    words = ["db", "import", str(tmp_path / name), "--storage", str(tmp_path / "tt.db")]
    assert run(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / name}: ")
    assert error.count("\n") == 1


def test_old_studies_are_removed_with_optunas_copies(stored, capsys):
    words = ["db", "gc", "--older-than", "0", "--storage", stored]
    assert run([*words, "--dry-run"]) == 0
    assert "would be removed: 2 studies, 0 comparisons" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    assert said(capsys)["studies"] == ["one", "two"]
    assert optuna.get_all_study_names(f"sqlite:///{stored}") == []
    assert run(["studies", "--storage", stored, "--json"]) == 0
    assert said(capsys)["studies"] == []


def test_recipes_are_not_removed_without_an_age(stored, capsys):
    assert run(["db", "gc", "--with-recipes", "--storage", stored]) == 2
    assert "say which studies with --older-than DAYS" in capsys.readouterr().err
