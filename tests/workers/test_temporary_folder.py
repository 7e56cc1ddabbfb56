from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import psutil
import pytest

from thunder_tune.workers.temporary_folder import (
    SHARED_VARIABLE,
    TemporaryFolder,
    shared_folder,
)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv(SHARED_VARIABLE, str(tmp_path))
    return tmp_path


def test_it_is_removed_with_all_that_is_in_it(shared):
    folder = TemporaryFolder()
    (folder.path / "a" / "b").mkdir(parents=True)
    (folder.path / "a" / "file").write_text("left")
    assert folder.path.parent == shared
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert list(shared.iterdir()) == []


def test_a_child_finds_it_and_the_shared_one(shared, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    folder = TemporaryFolder()
    code = (
        "import tempfile; from torch._inductor.runtime.cache_dir_utils import cache_dir; "
        "from thunder_tune.workers.temporary_folder import shared_folder; "
        "print(tempfile.gettempdir(), shared_folder(), cache_dir())"
    )
    environment = {**os.environ, **folder.environment()}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True
    )
    own, common, cache = said.stdout.decode().split()
    assert (own, common) == (str(folder.path), str(shared))
    assert cache.startswith(f"{shared}/torchinductor_")
    folder.remove()


def test_the_users_cache_of_inductor_stays_where_it_is(shared, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    folder = TemporaryFolder()
    assert folder.environment()["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"
    folder.remove()


def test_those_of_killed_owners_are_removed_and_those_of_others_stay(shared):
    code = (
        "import signal; from thunder_tune.workers.temporary_folder import TemporaryFolder; "
        "f = TemporaryFolder(); print(f.path, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        theirs = owner.stdout.readline().decode().strip()
        ours = TemporaryFolder()
        assert {str(path) for path in shared.iterdir()} == {theirs, str(ours.path)}
        owner.kill()
    another = TemporaryFolder()
    assert set(shared.iterdir()) == {ours.path, another.path}
    ours.remove()
    another.remove()


def test_what_a_killed_owners_candidates_left_running_is_ended(shared):
    stray = "import signal; signal.pause()"
    code = (
        "import os, signal, subprocess, sys; "
        "from thunder_tune.workers.temporary_folder import TemporaryFolder; "
        "folder = TemporaryFolder(); "
        "left = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True, "
        "env={**os.environ, **folder.environment()}); "
        "print(left.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code, stray], stdout=subprocess.PIPE) as owner:
        left = psutil.Process(int(owner.stdout.readline()))
        TemporaryFolder().remove()
        assert left.is_running()
        owner.kill()
    TemporaryFolder().remove()
    assert psutil.wait_procs([left], timeout=60)[1] == []


def test_outside_of_a_child_the_shared_one_is_the_machines(monkeypatch):
    monkeypatch.delenv(SHARED_VARIABLE, raising=False)
    assert str(shared_folder()) == tempfile.gettempdir()
