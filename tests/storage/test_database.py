import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from thunder_tune.storage import Database
from thunder_tune.testing.databases import DatabaseContract, add_many
from thunder_tune.testing.sample_values import (
    make_comparison,
    make_description,
    make_program,
    make_recipe,
    make_result,
    make_spec,
)


@pytest.fixture(params=["file", "memory", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request, tmp_path):
    url = {
        "file": lambda: str(tmp_path / "ü 100%.db"),
        "memory": lambda: "sqlite://",
        "postgresql": lambda: request.getfixturevalue("postgres_server").new_database(),
    }[request.param]()
    opened = Database.open(url)
    yield opened
    opened.close()


class TestDatabase(DatabaseContract):
    pass


def test_a_second_open_finds_everything(tmp_path):
    path = str(tmp_path / "tt.db")
    first = Database.open(path)
    first.create_study(make_spec())
    first.save_description("study", make_description())
    first.add_trial("study", make_result())
    first.save_recipe("study", make_recipe(), model_key="m")
    first.save_comparison("study", make_comparison())
    first.close()
    second = Database.open(path)
    assert second.study("study").spec == make_spec()
    assert second.description("study") == make_description()
    assert [t.result for t in second.trials("study")] == [make_result()]
    assert second.find_recipes(model_key="m") == [make_recipe()]
    assert second.comparison("study").standings[0].latency_ms == 1.0
    second.close()
    second.close()


def test_programs_and_machines_are_stored_once(tmp_path):
    path = tmp_path / "tt.db"
    database = Database.open(str(path))
    for name in ("one", "two"):
        database.create_study(make_spec(name))
        database.save_description(name, make_description())
    database.save_description("two", make_description(make_program("f" * 64)))
    database.close()
    with create_engine(f"sqlite:///{path}").connect() as connection:
        counts = [
            connection.scalar(text(f"SELECT count(*) FROM {table}"))
            for table in ("tt_programs", "tt_environments")
        ]
    assert counts == [2, 1]


def test_the_url_can_be_opened_again_and_hides_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = Database.open("here.db")
    database.create_study(make_spec())
    monkeypatch.chdir("/")
    assert database.url == f"sqlite:///{tmp_path / 'here.db'}"
    assert Database.open(database.url).study("study").spec == make_spec()


def test_writers_and_a_polling_reader_lose_nothing(any_url):
    url = any_url
    reader = Database.open(url)
    reader.create_study(make_spec())
    script = "import sys; from thunder_tune.testing.databases import add_many; "
    script += "add_many(sys.argv[1], 'study', sys.argv[2], 40)"
    writers = [
        subprocess.Popen([sys.executable, "-c", script, url, f"writer-{i}"]) for i in range(4)
    ]
    while any(writer.poll() is None for writer in writers):
        numbers = [t.number for t in reader.trials("study")]
        assert numbers == list(range(len(numbers)))
        assert reader.studies()[0].trials >= len(numbers)
    assert [writer.returncode for writer in writers] == [0] * 4
    found = [(t.result.worker, t.result.process_id) for t in reader.trials("study")]
    assert sorted(found) == sorted((f"writer-{w}", i) for w in range(4) for i in range(40))
    for w in range(4):
        assert [i for worker, i in found if worker == f"writer-{w}"] == list(range(40))


def test_results_survive_the_death_of_their_writer(any_url):
    url = any_url
    Database.open(url).create_study(make_spec())
    script = (
        "import os, signal, sys; from thunder_tune.storage import Database; "
        "from thunder_tune.testing.sample_values import make_result; "
        "d = Database.open(sys.argv[1]); "
        "[d.add_trial('study', make_result()) for _ in range(5)]; "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", script, url], check=False)
    assert died.returncode == -9
    add_many(url, "study", "heir", 1)
    assert [t.number for t in Database.open(url).trials("study")] == list(range(6))


def test_nothing_heavy_is_loaded():
    script = (
        "import sys; import thunder_tune.storage; "
        "print([m for m in ('torch', 'ray', 'optuna', 'alembic') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert told.stdout.strip() == "[]"


def test_the_package_ships_its_migrations():
    import thunder_tune.storage.migrations.versions as versions

    assert (Path(versions.__file__).parent / "v0001_initial.py").is_file()
