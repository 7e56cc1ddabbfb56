from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from thunder_tune.errors import StorageError
from thunder_tune.storage import Database, outage
from thunder_tune.testing.databases import HEIR, OWNER
from thunder_tune.testing.sample_values import make_result, make_spec


@pytest.fixture
def server(postgres_server):
    yield postgres_server
    if not postgres_server.is_running():
        postgres_server.start()


@pytest.fixture
def deaf_commits():
    """Have the answers to some next commits lost, which came through."""
    left = 0

    def lose(session):
        nonlocal left
        if left:
            left -= 1
            raise DBAPIError("COMMIT", {}, OSError("gone"), connection_invalidated=True)

    def arm(times):
        nonlocal left
        left = times

    event.listen(Session, "after_commit", lose)
    yield arm
    event.remove(Session, "after_commit", lose)


@pytest.mark.parametrize("times", [1, 3])
def test_a_result_whose_commit_was_not_answered_is_stored_once(
    any_url, deaf_commits, monkeypatch, times
):
    monkeypatch.setattr(outage, "pause", lambda seconds: None)
    database = Database.open(any_url)
    database.create_study(make_spec())
    assert database.add_trial("study", make_result()) == 0
    deaf_commits(times)
    assert database.add_trial("study", make_result(failure="wrong")) == 1
    assert database.add_trial("study", make_result(failure="wrong")) == 2  # measured again
    assert [t.number for t in database.trials("study")] == [0, 1, 2]
    database.close()


def test_a_lease_whose_commit_was_not_answered_is_taken(any_url, deaf_commits, monkeypatch):
    monkeypatch.setattr(outage, "pause", lambda seconds: None)
    database = Database.open(any_url)
    database.studies()
    deaf_commits(1)
    assert database.take_lease("study", OWNER)
    assert not database.take_lease("study", HEIR)
    database.close()


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_comes_back_was_never_missed(server, monkeypatch, mode, caplog):
    database = Database.open(server.new_database())
    database.create_study(make_spec())
    monkeypatch.setattr(outage, "pause", lambda seconds: server.start())
    for number in range(2):
        server.stop(mode)
        assert database.add_trial("study", make_result()) == number
    server.stop(mode)
    assert len(database.trials("study")) == 2
    said = [record.message for record in caplog.records]
    assert len(said) == 6
    assert "is not there: " in said[0]
    assert said[0].endswith("; waiting up to 120 s for it")
    assert said[1] == "the database is back"
    database.close()


@pytest.mark.postgres
def test_a_server_that_stays_away_is_told_once_and_not_waited_for_again(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(outage, "pause", pauses.append)
    database = Database.open(server.new_database(), patience_s=0.2)
    database.create_study(make_spec())
    server.stop()
    with pytest.raises(StorageError, match=r"is not there: .*; it has not come back within 0\.2 "):
        database.studies()
    assert pauses
    pauses.clear()
    with pytest.raises(StorageError, match="has not come back") as error:
        database.add_trial("study", make_result())
    assert "\n" not in str(error.value)
    assert pauses == []
    server.start()
    assert database.add_trial("study", make_result()) == 0
    database.close()


@pytest.mark.postgres
def test_a_server_that_never_was_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(outage, "pause", None)
    url = server.new_database()
    server.stop()
    with pytest.raises(StorageError, match="is not there"):
        Database.open(url)


def test_a_file_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(outage, "pause", None)
    database = Database.open(str(tmp_path / "tt.db"))
    database.studies()
    with sqlite3.connect(tmp_path / "tt.db") as connection:
        connection.execute("DROP TABLE tt_studies")
    with pytest.raises(StorageError, match="no such table"):
        database.studies()
    database.close()
