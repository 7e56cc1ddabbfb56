from __future__ import annotations

import pytest

from thunder_tune.errors import WorkerError
from thunder_tune.workers.log_file import HEAD_BYTES, TAIL_BYTES, LogFile

MOST = HEAD_BYTES + 5 * TAIL_BYTES


def test_files_of_a_worker_are_numbered(tmp_path):
    paths = [LogFile(str(tmp_path / "logs"), "worker-0").path for _ in range(2)]
    assert paths == [str(tmp_path / f"logs/worker-0.{n}.log") for n in (1, 2)]


def test_without_a_folder_there_is_none():
    log = LogFile("", "worker-0")
    with log.opened() as file:
        file.write(b"noise")
    log.note("a line")
    log.cut()
    assert (log.path, log.size(), log.tail(100)) == ("", 0, "")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WorkerError, match=r"^the log folder .*/file cannot be written"):
        LogFile(str(tmp_path / "file"), "worker-0")


def test_a_long_log_keeps_its_head_and_its_tail_however_often_it_is_cut(tmp_path):
    log = LogFile(str(tmp_path), "worker-0")
    written = 0
    with log.opened() as file:
        for number in range(5):
            written += file.write(f"begin {number}\n".encode() + bytes(MOST) + b"end\n")
            file.flush()
            log.cut()
            assert log.size() <= MOST
        file.write(b"goes on\n")
    log.note("a line")
    text = log.tail(MOST)
    assert text.startswith("begin 0\n")
    assert text.endswith("end\ngoes on\n\nthunder-tune: a line\n")
    (note,) = (line for line in text.splitlines() if "left out" in line)
    left_out = int(note.split()[1])
    assert written - left_out <= HEAD_BYTES + TAIL_BYTES + 5 * 100  # its notes, left out in turn
    assert text.count("begin") == 1


def test_a_short_log_is_left_alone(tmp_path):
    log = LogFile(str(tmp_path), "worker-0")
    with log.opened() as file:
        file.write(bytes(HEAD_BYTES))
    log.cut()
    assert log.size() == HEAD_BYTES
