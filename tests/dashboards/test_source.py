from __future__ import annotations

import os
from pathlib import Path

import pytest

from thunder_tune.dashboards import source as module
from thunder_tune.dashboards.source import Source, progress, summary
from thunder_tune.errors import NotFoundError
from thunder_tune.storage import Database
from thunder_tune.testing.sample_values import make_result, make_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "data"
    (root / "logs" / "vit").mkdir(parents=True)
    monkeypatch.setattr(module, "user_data_dir", lambda *_, **__: str(root))
    return root


def test_the_end_of_a_log_is_shown(database: Database, folder: Path):
    log = folder / "logs" / "vit" / "worker.log"
    log.write_text("\n".join(f"line {i}" for i in range(10_000)))
    found = Source.of(database).log_excerpt(str(log))
    assert found is not None
    assert found.splitlines()[-1] == "line 9999"
    assert len(found.splitlines()) == module.LOG_LINES


def test_no_path_leaves_the_data_folder(database: Database, folder: Path, tmp_path: Path):
    secret = tmp_path / "secret.log"
    secret.write_text("secret")
    link = folder / "logs" / "link.log"
    link.symlink_to(secret)
    loop = folder / "logs" / "loop.log"
    loop.symlink_to(loop)
    pipe = folder / "logs" / "pipe.log"
    os.mkfifo(pipe)
    database_file = folder / "thunder_tune.db"
    database_file.write_text("x")
    inside = folder / "logs"
    for path in (
        str(secret),
        f"{inside}/../../secret.log",
        str(link),
        str(loop),
        str(pipe),
        str(inside),
        str(database_file),
        "/etc/passwd",
        "relative.log",
        "nul\0.log",
        "x" * 5000,
        "\ud800.log",
        "",
    ):
        assert Source.of(database).log_excerpt(path) is None, path


def test_time_left_follows_the_pace(database: Database):
    database.create_study(make_spec(trials=10))
    source = Source.of(database)
    assert progress(database.study("study"), source.tables.of("study")).left_s is None
    for _ in range(4):
        database.add_trial("study", make_result())
    found = progress(database.study("study"), source.tables.of("study"))
    assert (found.finished, found.requested) == (4, 10)
    assert found.left_s is not None
    assert found.left_s >= 0
    database.update_study("study", state="done")
    assert progress(database.study("study"), source.tables.of("study")).left_s is None


def test_a_missing_trial_is_named(database: Database):
    database.create_study(make_spec())
    with pytest.raises(NotFoundError, match="trial 3 of study 'study' does not exist: it has 0"):
        Source.of(database).trial("study", 3)


def test_a_summary_is_that_of_the_list(filled: Database):
    source = Source.of(filled)
    for expected in filled.studies():
        name = expected.name
        assert summary(filled.study(name), source.tables.of(name)) == expected
