from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from thunder_tune.errors import NotFoundError
from thunder_tune.storage import Database
from thunder_tune.study.cancelling import cancel_study
from thunder_tune.study.lease import holding
from thunder_tune.testing.pool_contract import PATIENCE_S
from thunder_tune.values.study import baselines_for

TRIALS = 400
BASELINES = len(baselines_for("cpu"))


@pytest.fixture
def controller(any_url) -> Iterator[subprocess.Popen[str]]:
    """A study that another process runs, some of whose trials are stored."""
    words = [any_url, "study", str(TRIALS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "thunder_tune.testing.study_driver", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert any(line == f"stored {BASELINES + 3}\n" for line in process.stdout)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def opened(any_url) -> Iterator[Database]:
    database = Database.open(any_url)
    yield database
    database.close()


def test_a_study_ends_where_it_runs_and_can_go_on(controller, opened, any_url):
    ending = cancel_study(opened, "study")
    assert (ending.how, ending.state) == ("ended", "interrupted")
    assert ending.lease.owner.process_id == controller.pid
    said, _ = controller.communicate(timeout=PATIENCE_S)
    assert controller.returncode == 130
    assert "note: cancelled by thunder-tune cancel" in said
    assert 3 < ending.trials < TRIALS
    assert len(opened.trials("study", "search")) == ending.trials
    more = str(ending.trials + 2)
    done = subprocess.run(
        [sys.executable, "-m", "thunder_tune.testing.study_driver", any_url, "study", more],
        check=False,
    )
    assert done.returncode == 0
    assert len(opened.trials("study", "search")) == ending.trials + 2


def test_a_second_run_of_a_study_is_refused_while_the_first_goes_on(controller, any_url):
    second = subprocess.run(
        [sys.executable, "-m", "thunder_tune.testing.study_driver", any_url, "study", "5"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    (line,) = second.stdout.splitlines()
    assert line.startswith(f"error: study 'study' is run by process {controller.pid} on ")
    assert controller.stdout.readline().startswith("stored ")


def test_a_dead_controller_is_told_and_its_study_interrupted(controller, opened):
    controller.send_signal(signal.SIGKILL)
    controller.wait(PATIENCE_S)
    ending = cancel_study(opened, "study")
    assert (ending.how, ending.state) == ("dead", "interrupted")
    assert ending.lease.owner.process_id == controller.pid
    assert opened.lease("study") is None
    assert cancel_study(opened, "study").how == "not-running"


def test_a_controller_that_does_not_end_was_asked(database, spec):
    database.create_study(spec())
    with holding(database, "study"):
        ending = cancel_study(database, "study", patience_s=0.0)
        assert (ending.how, ending.state) == ("asked", "running")
        assert database.lease("study").is_cancelled


def test_a_study_left_without_a_lease_is_interrupted(database, spec):
    database.create_study(spec())
    assert cancel_study(database, "study").how == "dead"
    assert database.study("study").state == "interrupted"


def test_an_unknown_study_is_told_with_close_names(database, spec):
    database.create_study(spec("resnet"))
    with pytest.raises(NotFoundError, match="study 'resnat' does not exist: did you mean 'resn"):
        cancel_study(database, "resnat")
