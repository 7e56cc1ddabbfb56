"""A database server that goes away comes back: whoever is cut off waits for it and tries again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

from thunder_tune.errors import StorageError

T = TypeVar("T")

logger = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""How long a server may be away: a restart takes seconds, a failover to another a minute."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_GOING_AND_COMING = ("57P01", "57P02", "57P03")
"""PostgreSQL's states for shut down, crashed, and starting up."""


class ConnectionLost(StorageError):
    """The server went away; whether a commit under way came through is not known."""


class Outage:
    """Waits out the absences of one server; threads share the clock of an absence.

    A server that was never reached is not waited for: its address may be wrong. Nor is one that
    was waited for in vain, until it answers again: a run that ends must not wait at every step.

    Args:
        patience_s: Seconds that an absence may last.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._was_there = False
        self._since: float | None = None

    def through(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, calling it anew while it raises `ConnectionLost`.

        Args:
            work: To do; it may have come through although it says that the connection was lost.

        Raises:
            StorageError: The server has not come back.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                done = work()
            except ConnectionLost as error:
                if not self._was_there:
                    raise
                self._note(error)
                pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                if self._since is not None:
                    logger.warning("the database is back")
                self._was_there, self._since = True, None
                return done

    def _note(self, error: ConnectionLost) -> None:
        now, since = time.monotonic(), self._since
        if since is None:
            since = self._since = now
            if self._patience_s:
                logger.warning("%s; waiting up to %.3g s for it", error, self._patience_s)
        if now - since >= self._patience_s:
            raise StorageError(
                f"{error}; it has not come back within {self._patience_s:.3g} s: start it again "
                "and go on; all that was stored is kept"
            ) from error


def pause(seconds: float) -> None:
    """Wait before the next attempt."""
    time.sleep(seconds)


def is_loss(error: BaseException) -> bool:
    """Return whether an error says that the server is not there, not that it objects.

    Nobody stays away in a file: SQLite's errors never do.
    """
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    said = error.orig
    if not isinstance(error, OperationalError) or said is None or not hasattr(said, "sqlstate"):
        return False
    state: str | None = said.sqlstate  # None where no connection could be made
    return state is None or state.startswith("08") or state in _GOING_AND_COMING
