"""Processes that candidates left behind, found by what they inherited."""

from __future__ import annotations

from contextlib import suppress

import psutil


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes of this user that were started with a variable's value."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                found.append(process)
    return found
