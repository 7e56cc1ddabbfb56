"""A folder for temporary files of one child: gone with it, whatever the child left there."""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from thunder_tune.workers.strays import processes_with

SHARED_VARIABLE = "THUNDER_TUNE_SHARED_TMPDIR"
"""Of a child's environment: the machine's folder, for what its processes share."""

_VARIABLE = "TMPDIR"
_RANDOM = 12
"""Hexadecimal digits of a name: sockets are made in there, whose paths must stay short."""


def shared_folder() -> Path:
    """Return the machine's folder for temporary files, in a child too."""
    return Path(os.environ.get(SHARED_VARIABLE) or tempfile.gettempdir())


class TemporaryFolder:
    """A new folder, locked for as long as its owner lives.

    Whoever makes the next one removes those of owners that were killed, and ends the processes
    that candidates of theirs left behind, which still have such a folder in their environment.

    Raises:
        OSError: The machine's folder cannot be written.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        while True:
            self.path = shared_folder() / f"{_prefix()}{uuid.uuid4().hex[:_RANDOM]}"
            self.path.mkdir(mode=0o700)
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)
            # Another took it for abandoned before it was locked.

    def environment(self) -> Mapping[str, str]:
        """Return what a child's environment says of it.

        Inductor keeps its cache among the temporary files: the next child shall find it there.
        """
        shared = shared_folder()
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(shared / f"torchinductor_{user}")
        return {
            _VARIABLE: str(self.path),
            SHARED_VARIABLE: str(shared),
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }

    def remove(self) -> None:
        """Remove it with all that is in it; once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned() -> None:
    for path in shared_folder().glob(f"{_prefix()}*"):
        with suppress(OSError):
            folder = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for process in processes_with(_VARIABLE, str(path)):
                    with suppress(psutil.Error):
                        process.kill()
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)


def _prefix() -> str:
    return f"thunder_tune-{os.getuid()}-trial-"
