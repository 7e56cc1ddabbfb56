import sqlite3
import sys

import pytest
from sqlalchemy import select, text

from thunder_tune.errors import MissingDependency, StorageError
from thunder_tune.storage import Database, sessions
from thunder_tune.storage.location import locate
from thunder_tune.storage.schema import upgrade
from thunder_tune.storage.sessions import DuplicateRow, Sessions
from thunder_tune.storage.tables import RecipeRow, StudyRow
from thunder_tune.testing.sample_values import make_result, make_spec


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "tt.db"
    database = Database.open(str(path))
    database.create_study(make_spec())
    for _ in range(200):
        database.add_trial("study", make_result())
    database.close()
    return path


@pytest.fixture
def opened(tmp_path):
    found = Sessions(locate(str(tmp_path / "tt.db")))
    upgrade(found)
    yield found
    found.close()


def study(name):
    return StudyRow(name=name, model="m", device="cpu", state="done", setting_key="k", spec="{}")


def names(opened):
    return opened.read(
        lambda session: list(session.scalars(select(StudyRow.name).order_by(StudyRow.id)))
    )


def test_files_are_set_up_for_readers_beside_a_writer(opened):
    with opened.transaction() as session:
        pragmas = [
            session.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        ]
    assert pragmas == ["wal", 1, 60_000]


def test_a_failed_transaction_leaves_nothing(opened):
    def add_and_fail(session):
        session.add(study("lost"))
        session.flush()
        raise RuntimeError("after the row was written")

    with pytest.raises(RuntimeError, match="after the row was written"):
        opened.write(add_and_fail)
    assert names(opened) == []


def test_a_taken_key_is_tried_again_and_then_told(opened):
    calls = []

    def add(session, taken):
        calls.append(taken)
        session.add(study("one" if len(calls) <= taken else f"new-{len(calls)}"))

    opened.write(lambda session: session.add(study("one")))
    opened.write(lambda session: add(session, 2))
    assert names(opened) == ["one", "new-3"]
    calls.clear()
    with pytest.raises(DuplicateRow, match=r"UNIQUE constraint failed: tt_studies\.name"):
        opened.write(lambda session: add(session, 100))


def test_references_are_checked(opened):
    orphan = RecipeRow(study_id=9, digest="d", model_key="", document="{}")
    with pytest.raises(StorageError, match="FOREIGN KEY constraint failed"):
        opened.write(lambda session: session.add(orphan))


def test_a_lock_that_is_not_released_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "tt.db"
    database = Database.open(str(path))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"tt\.db is locked by another program"):
        database.create_study(make_spec())
    assert database.studies() == []
    holder.execute("ROLLBACK")
    database.create_study(make_spec())
    assert len(database.studies()) == 1


def test_a_folder_that_is_missing_or_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("none", "file"):
        with pytest.raises(StorageError, match=f"{folder} is not a folder: create it, or choose"):
            Database.open(str(tmp_path / folder / "tt.db"))


def test_a_folder_in_place_of_a_file_is_told(tmp_path):
    with pytest.raises(StorageError, match="is a folder: name a file in it"):
        Database.open(str(tmp_path))


def test_a_file_that_may_not_be_made_is_told():
    # Not even root may make a file here.
    with pytest.raises(StorageError, match=r"/proc/tt\.db may not be written: choose another"):
        Database.open("/proc/tt.db")


def test_a_read_only_file_can_be_read_and_says_so_when_written(filled):
    database = Database.open(f"sqlite:///file:{filled}?mode=ro&uri=true")
    assert len(database.trials("study")) == 200
    with pytest.raises(StorageError, match="is read-only: make the file and its folder writable"):
        database.add_trial("study", make_result())


def test_a_read_only_file_without_tables_is_told(tmp_path):
    sqlite3.connect(tmp_path / "tt.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(StorageError, match="is read-only"):
        Database.open(f"sqlite:///file:{tmp_path / 'tt.db'}?mode=ro&uri=true")


@pytest.mark.parametrize("content", [b"not a database at all " * 500, b"SQLite format 3\0 but no"])
def test_another_file_is_told_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"notes\.txt is not an SQLite database: choose"):
        Database.open(str(path))
    assert path.read_bytes() == content


def test_a_file_cut_in_half_is_told(filled):
    content = filled.read_bytes()
    filled.write_bytes(content[: len(content) // 2])
    with pytest.raises(StorageError, match=r"tt\.db is damaged .*: restore a copy, or choose"):
        Database.open(str(filled)).trials("study")


def test_a_damaged_file_is_told(filled):
    content = filled.read_bytes()
    filled.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    with pytest.raises(StorageError, match=r"tt\.db is damaged .*: restore a copy, or choose"):
        Database.open(str(filled))


def test_an_unknown_kind_of_database_is_told():
    with pytest.raises(StorageError, match=r"://u:\*\*\*@h/x: unknown kind of database 'nosql'"):
        Database.open("nosql://u:secret@h/x")


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:secret@h/x", "postgresql://u:secret@h/x"])
def test_a_missing_driver_names_the_extra(monkeypatch, url):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"'thunder-tune\[postgres\]'") as error:
        Database.open(url)
    assert "secret" not in str(error.value)


def test_another_missing_driver_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(MissingDependency, match="driver is missing"):
        Database.open("mysql+pymysql://u@h/x")


def test_every_error_is_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text("x" * 5000)
    for place in ("/proc/tt.db", str(tmp_path), str(tmp_path / "notes.txt"), "nosql://h/x"):
        with pytest.raises(StorageError, match="database") as error:
            Database.open(place)
        assert "\n" not in str(error.value)
        assert error.value.__cause__ is not None
