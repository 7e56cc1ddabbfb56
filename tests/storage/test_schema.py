import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect

from thunder_tune.errors import StorageError
from thunder_tune.storage import Database, schema
from thunder_tune.storage.location import locate
from thunder_tune.storage.sessions import Sessions
from thunder_tune.storage.tables import Base
from thunder_tune.testing.sample_values import make_result, make_spec

optuna.logging.set_verbosity(optuna.logging.WARNING)


def tables(path):
    engine = create_engine(f"sqlite:///{path}")
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return found


OURS = {*Base.metadata.tables, schema.VERSION_TABLE}


def test_head_is_the_newest_revision():
    assert ScriptDirectory.from_config(schema.migrations()).get_current_head() == schema.HEAD


def test_an_empty_database_gets_our_tables_and_a_second_open_changes_nothing(tmp_path):
    path = tmp_path / "tt.db"
    for _ in range(2):
        Database.open(str(path)).close()
        assert tables(path) == OURS
    assert all(name.startswith("tt_") for name in OURS)


def test_migrations_make_what_is_mapped(tmp_path):
    path = tmp_path / "tt.db"
    Database.open(str(path)).close()
    optuna.create_study(storage=f"sqlite:///{path}")
    with create_engine(f"sqlite:///{path}").connect() as connection:
        options = {
            "version_table": schema.VERSION_TABLE,
            "include_name": schema.is_ours,
            "compare_type": True,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_a_database_of_each_older_version_is_upgraded_with_all_that_it_holds(any_url):
    database = Database.open(any_url)
    database.create_study(make_spec())
    database.add_trial("study", make_result())
    database.close()
    sessions = Sessions(locate(any_url))
    for older in ("0001",):
        with sessions.transaction(write=True) as session:
            command.downgrade(schema.migrations(session.connection()), older)
        database = Database.open(any_url)
        assert database.lease("study") is None
        assert [t.result for t in database.trials("study")] == [make_result()]
        database.close()
    sessions.close()


def test_a_kept_file_of_every_version_is_upgraded_with_all_that_it_holds(tmp_path):
    known = {r.revision for r in ScriptDirectory.from_config(schema.migrations()).walk_revisions()}
    files = {path.stem: path for path in (Path(__file__).parent / "schemas").glob("*.sql")}
    assert set(files) == known  # how each was made: files of `sqlite3 FILE .dump`
    for version, kept in files.items():
        path = tmp_path / f"{version}.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(kept.read_text())
        database = Database.open(str(path))
        assert [s.name for s in database.studies()] == ["kept"]
        record = database.study("kept")
        assert (record.state, record.spec.name) == ("interrupted", "kept")
        assert database.description("kept") is not None
        trials = database.trials("kept")
        assert [t.number for t in trials] == [0, 1, 2]
        assert [t.result.role for t in trials] == ["baseline", "search", "search"]
        assert trials[1].result.timing.samples_ms
        assert trials[2].result.failure.kind == "wrong"
        assert database.comparison("kept") is not None
        assert len(database.find_recipes(model_key="m")) == 1
        database.create_study(record.spec)  # and goes on
        assert database.add_trial("kept", make_result()) == 3
        database.close()


def test_downgrading_takes_our_tables_away(tmp_path):
    path = tmp_path / "tt.db"
    Database.open(str(path)).close()
    with Sessions(locate(str(path))).transaction(write=True) as session:
        command.downgrade(schema.migrations(session.connection()), "base")
    assert tables(path) == {schema.VERSION_TABLE}
    Database.open(str(path)).create_study(make_spec())


@pytest.mark.parametrize("first", ["ours", "optuna"])
def test_optuna_lives_in_the_same_file(tmp_path, first):
    path = tmp_path / "both.db"
    if first == "ours":
        Database.open(str(path)).close()
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    study = optuna.create_study(study_name="study", storage=storage)
    database = Database.open(str(path))
    database.create_study(make_spec())
    for _ in range(3):
        study.tell(study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}), 1.0)
        database.add_trial("study", make_result())

    storage.upgrade()
    reopened = optuna.load_study(study_name="study", storage=f"sqlite:///{path}")
    assert len(reopened.trials) == 3
    assert len(Database.open(str(path)).trials("study")) == 3
    assert tables(path) > OURS | {"studies", "trials", "alembic_version"}


def test_optuna_at_an_old_schema_and_ours_upgrade_apart(tmp_path):
    path = tmp_path / "both.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    storage.upgrade()
    newest = storage.get_current_version()
    storage.remove_session()
    storage.engine.dispose()
    Database.open(str(path)).create_study(make_spec())
    with sqlite3.connect(path) as connection:
        versions = [
            connection.execute(f"SELECT version_num FROM {name}").fetchall()
            for name in ("alembic_version", schema.VERSION_TABLE)
        ]
    assert versions == [[(newest,)], [(schema.HEAD,)]]


def test_a_newer_schema_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "tt.db"
    Database.open(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StorageError, match=r"has schema 9999, newer than .* upgrade thunder-tune"):
        Database.open(str(path))
    with sqlite3.connect(path) as connection:
        found = connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}").fetchall()
    assert found == [("9999",)]


def test_an_interrupted_migration_leaves_no_tables(tmp_path, monkeypatch):
    path = tmp_path / "tt.db"

    def broken(config, target):
        upgrade(config, target)
        raise KeyboardInterrupt("in the middle")

    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", broken)
    with pytest.raises(KeyboardInterrupt, match="in the middle"):
        Database.open(str(path))
    monkeypatch.undo()
    assert tables(path) == set()
    Database.open(str(path)).create_study(make_spec())


def test_processes_may_open_a_new_database_together(any_url):
    script = (
        "import sys; from thunder_tune.storage import Database; print('ready', flush=True); "
        "sys.stdin.readline(); Database.open(sys.argv[1]).studies()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, any_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(120) for process in processes] == [0] * 4
    assert Database.open(any_url).studies() == []
