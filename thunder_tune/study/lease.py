"""A study is run by one process at a time, which can be asked to end and found dead.

The process holds the study's *lease*, a row of the database, and counts its beats there once a
second. Another run of the study is refused while it lives. It is dead where its machine is this
one and it is gone, or else where the count stands still while the observer could write as often
as `DEAD_AFTER`: so neither clocks nor a database that lets nobody write can kill it. Should it
be taken for dead and not be, it can store nothing any more, and ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

import psutil

from thunder_tune.errors import ConflictError, StorageError
from thunder_tune.storage import Database, LeaseRecord, Owner
from thunder_tune.storage.leases import lost

logger = logging.getLogger(__name__)

BEAT_S = 1.0
"""Between two signs of life, and between two looks at another process's."""
DEAD_AFTER = 10
"""So many looks without a sign of life: nobody is there."""
_SAME_START_S = 2.0
"""Times at which one process started, as read twice, differ by less."""

Life = Literal["alive", "gone", "unknown"]

_held: set[str] = set()
"""Tokens of the leases that this process holds."""


class Lease:
    """The lease of a study, as its holder sees it; any thread may look.

    Attributes:
        token: Allows to store results of the study.
    """

    def __init__(self, database: Database, study: str, token: str) -> None:
        """Begin to give signs of life, until `stop`."""
        self.token = token
        self._database = database
        self._study = study
        self._is_cancelled = False
        self._lost = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Go on only where the lease is held and nobody asked for an end.

        Raises:
            KeyboardInterrupt: The study was cancelled: it ends as by Ctrl-C.
            ConflictError: Another process has taken the study over.
        """
        if self._lost:
            raise ConflictError(self._lost)
        if self._is_cancelled:
            raise KeyboardInterrupt("cancelled")

    @property
    def is_cancelled(self) -> bool:
        """Whether `thunder-tune cancel` asked for an end."""
        return self._is_cancelled

    def renew(self) -> None:
        """Give a sign of life now.

        Raises:
            ConflictError: Another process has taken the study over.
        """
        found = self._database.beat(self._study, self.token)
        if found is None:
            self._lost = lost(self._study, self._database.lease(self._study))
            raise ConflictError(self._lost)
        self._is_cancelled = self._is_cancelled or found.is_cancelled

    def stop(self) -> None:
        """Give no more signs of life, and the lease back."""
        self._stop.set()
        self._thread.join()
        with suppress(StorageError):  # if the database is gone, others will find this run dead
            self._database.release_lease(self._study, self.token)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self.renew()
            except ConflictError:
                return
            except StorageError as error:  # told by whoever has something to store
                logger.debug("no sign of life: %s", error)


@contextmanager
def holding(
    database: Database, study: str, *, notice: Callable[[str], None] = lambda text: None
) -> Iterator[Lease]:
    """Be the only process that runs a study, inside the block.

    Args:
        database: Where the study is stored, or will be.
        study: Its name.
        notice: Told that a dead process's study is taken over.

    Raises:
        ConflictError: Another process runs it.
    """
    owner = this_process()
    _held.add(owner.token)
    try:
        _take(database, study, owner, notice)
        lease = Lease(database, study, owner.token)
        try:
            yield lease
        finally:
            lease.stop()
    finally:
        _held.discard(owner.token)


def this_process() -> Owner:
    """Return this process as the owner of a new lease."""
    return Owner(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        machine=_machine(),
        process_id=os.getpid(),
        process_started=psutil.Process().create_time(),
    )


def life_of(owner: Owner) -> Life:
    """Say whether a process that holds a lease still runs; unknown is what runs elsewhere."""
    if owner.machine != _machine():
        return "unknown"
    try:
        process = psutil.Process(owner.process_id)
        if process.status() == psutil.STATUS_ZOMBIE:
            return "gone"
        started = process.create_time()
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.Error:
        return "unknown"
    if owner.process_id == os.getpid() and owner.token not in _held:
        return "gone"
    # A clock that was set moves the start of every process: only the same start says something.
    return "alive" if abs(started - owner.process_started) < _SAME_START_S else "unknown"


class Watch:
    """Looks at a lease from outside until its owner shows that it lives, or does not."""

    def __init__(self) -> None:
        self._seen: tuple[str, int] | None = None
        self._looks = 0

    def look(self, found: LeaseRecord) -> Life:
        """Judge a lease as it was read just now, `BEAT_S` after the last look."""
        life = life_of(found.owner)
        if life != "unknown":
            return life
        token, beats = found.owner.token, found.beats
        if self._seen is not None and self._seen[0] == token and self._seen[1] != beats:
            return "alive"
        self._looks = self._looks + 1 if self._seen == (token, beats) else 0
        self._seen = (token, beats)
        return "gone" if self._looks >= DEAD_AFTER else "unknown"


def _take(database: Database, study: str, owner: Owner, notice: Callable[[str], None]) -> None:
    watch, is_told = Watch(), False
    # Each look is an attempt to write: while nobody can write, nobody is found dead.
    while not database.take_lease(study, owner):
        found = database.lease(study)
        if found is None:
            continue
        life = watch.look(found)
        if life == "alive":
            raise ConflictError(
                f"study {study!r} is run by {found} already: wait for it, end it with "
                f"thunder-tune cancel {shlex.quote(study)}, or take another --study name"
            )
        if life == "gone":
            if database.take_lease(study, owner, instead_of=found):
                notice(f"{found.owner}, which ran this study, is dead: going on from what it left")
                return
            continue
        if not is_told:
            is_told = True
            notice(f"waiting for a sign of life of {found.owner}, which ran this study last")
        time.sleep(BEAT_S)


@cache
def _machine() -> str:
    """Return a digest that is equal where processes see each other under the same ids."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # Linux only; a container has process ids of its own
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
