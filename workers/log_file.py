"""The log of one child: whatever it prints, of which the beginning and the end are kept."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from thunder_tune.errors import WorkerError

HEAD_BYTES = 2**22
"""Kept of the beginning, where the first error is."""
TAIL_BYTES = 2**20
"""Kept of the end, where the last words are."""
_SLACK = 4
"""Times the end that may be there before a log is cut: a cut costs a read of the end."""


class LogFile:
    """A file that a child appends to by itself, and that its parent cuts when it gets too long.

    No pipe lies between, so that the last words of a child are there whatever becomes of its
    parent. What the child writes between two looks of the parent is not bounded.

    Attributes:
        path: Of the file, or "" for none.
    """

    def __init__(self, folder: str, name: str) -> None:
        """Make the first file of a worker that does not exist yet; in no folder: none.

        Raises:
            WorkerError: The folder cannot be written.
        """
        self.path = _new_file(folder, name) if folder else ""
        self._left_out = 0

    def opened(self) -> IO[bytes]:
        """Return the file for a child to write to, always at the end: also after a cut."""
        return open(self.path or os.devnull, "ab")

    def note(self, text: str) -> None:
        """Add a line of our own."""
        if self.path:
            with suppress(OSError), self.opened() as file:  # a full disk must not hide the failure
                file.write(f"\nthunder-tune: {text}\n".encode(errors="replace"))

    def tail(self, at_most: int) -> str:
        """Return the end of the log."""
        if not self.path:
            return ""
        with open(self.path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - at_most))
            return file.read().decode(errors="replace")

    def cut(self) -> None:
        """Leave out the middle of a log that has become too long."""
        if self.size() <= HEAD_BYTES + _SLACK * TAIL_BYTES:
            return
        with suppress(OSError), open(self.path, "r+b") as file:
            begin = file.seek(0, os.SEEK_END) - TAIL_BYTES
            file.seek(begin)
            tail = file.read()
            self._left_out += begin - HEAD_BYTES
            file.truncate(HEAD_BYTES)
            file.seek(HEAD_BYTES)
            note = f"\n\nthunder-tune: {self._left_out} bytes are left out here\n\n"
            file.write(note.encode() + tail)

    def wait_for_more(self, than: int, timeout_s: float) -> None:
        """Wait until the log is longer and nothing more comes, or for `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        size = than
        while time.monotonic() < deadline:
            time.sleep(0.05)
            before, size = size, self.size()
            if than < size == before:
                return

    def size(self) -> int:
        """Return the length in bytes."""
        return os.stat(self.path).st_size if self.path else 0


def _new_file(folder: str, name: str) -> str:
    number = 1
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        while True:
            path = Path(folder) / f"{name}.{number}.log"
            with suppress(FileExistsError):
                path.open("xb").close()
                return str(path)
            number += 1
    except OSError as error:
        raise WorkerError(
            f"the log folder {folder} cannot be written ({error.strerror}): set XDG_DATA_HOME to "
            "a folder of your own"
        ) from error
