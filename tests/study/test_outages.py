"""A study whose database goes away, for a while or for good, while it runs."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, event

from thunder_tune.errors import StorageError
from thunder_tune.storage import Database, outage
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import FakePool, synthetic_description
from thunder_tune.testing.silent_observer import SilentObserver

TRIALS = 10
BASELINES = 4


class At(SilentObserver):
    """Does something once a number of results are stored."""

    def __init__(self, number, act):
        self._number, self._act = number, act

    def on_result(self, number, result):
        if number == self._number:
            self._act()


@pytest.fixture
def run(spec, dimensions, costs):
    """Run the study on a database, doing something in its middle; whole it has 14 results."""

    def start(database, act=lambda: None):
        pool = FakePool(synthetic_description(dimensions(6)), costs(), capacity=2)
        return run_study(
            spec(trials=TRIALS),
            pool=pool,
            database=database,
            observer=At(7, act),
            clock=pool.clock,
        )

    return start


def stored(url):
    database = Database.open(url)
    found = database.trials("study")
    assert [t.number for t in found] == list(range(len(found)))
    plans = [t.result.candidate.plan_key for t in found]
    assert len(plans) == len(set(plans))
    database.close()
    return len(found)


@pytest.mark.postgres
def test_a_server_restarted_in_the_middle_of_a_run_is_waited_for(
    postgres_server, run, monkeypatch
):
    def restart(seconds):
        if not postgres_server.is_running():
            postgres_server.start()

    monkeypatch.setattr(outage, "pause", restart)
    database = Database.open(postgres_server.new_database())
    outcome = run(database, lambda: postgres_server.stop("immediate"))
    assert outcome.state == database.study("study").state == "done"
    assert outcome.counts.finished == TRIALS
    assert stored(database.url) == TRIALS + BASELINES
    database.close()


@pytest.mark.postgres
def test_a_server_that_stays_away_ends_the_run_in_one_line_and_loses_nothing(
    postgres_server, run, monkeypatch
):
    monkeypatch.setattr(outage, "pause", lambda seconds: None)
    database = Database.open(postgres_server.new_database(), patience_s=0.2)
    with pytest.raises(
        StorageError, match=r"it has not come back within 0\.2 s: start it"
    ) as told:
        run(database, postgres_server.stop)
    assert "\n" not in str(told.value)
    postgres_server.start()
    assert stored(database.url) == 8
    assert run(database).counts.finished == TRIALS
    assert stored(database.url) == TRIALS + BASELINES
    database.close()


@pytest.fixture
def every_connection():
    """Have each connection to any database carry out a statement from now on."""
    undo = []

    def begin(statement):
        def obey(connection, *_):
            connection.exec_driver_sql(statement)

        event.listen(Engine, "begin", obey)
        undo.append(lambda: event.remove(Engine, "begin", obey))

    yield begin, undo
    for each in undo:
        each()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA max_page_count=1", "cannot be written: the disk is full: free space, or"),
        ("PRAGMA query_only=1", "is read-only: make the file and its folder writable, or"),
    ],
)
def test_a_file_that_cannot_be_written_any_more_ends_the_run_in_one_line_and_loses_nothing(
    tmp_path, run, every_connection, statement, said
):
    begin, undo = every_connection
    database = Database.open(str(tmp_path / "tt.db"))
    with pytest.raises(StorageError, match=f"^database sqlite:.*tt.db {said}") as told:
        run(database, lambda: begin(statement))
    assert "\n" not in str(told.value)
    undo.pop()()
    database.close()
    assert stored(database.url) >= 8
    assert run(database).counts.finished == TRIALS
    assert stored(database.url) == TRIALS + BASELINES
    database.close()
