"""Leases in a session: which process runs a study, a sign of its life, and the wish to end it.

No clock is compared: a process counts its beats, and whoever doubts its life watches the count.
"""

from __future__ import annotations

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from thunder_tune.errors import ConflictError
from thunder_tune.storage.records import LeaseRecord, Owner
from thunder_tune.storage.tables import LeaseRow


def record(session: Session, study: str) -> LeaseRecord | None:
    """Return the lease of a study, or None where nobody runs it."""
    found = _row(session, study)
    return None if found is None else _record(found)


def take(session: Session, study: str, owner: Owner, instead_of: LeaseRecord | None) -> bool:
    """Take a lease that is free, or one that has not changed since it was read.

    Args:
        session: A writing one.
        study: That need not exist yet.
        owner: Of the lease from now on.
        instead_of: The lease of an owner that is dead.

    Returns:
        Whether it was taken.
    """
    found = _row(session, study, lock=True)
    if found is not None:
        if found.token == owner.token:  # taken by a call whose answer was lost
            return True
        if instead_of is None or not _is_unchanged(found, instead_of):
            return False
        session.delete(found)
        session.flush()
    session.add(
        LeaseRow(
            study=study,
            token=owner.token,
            host=owner.host,
            machine=owner.machine,
            process_id=owner.process_id,
            process_started=owner.process_started,
            beats=0,
            is_cancelled=False,
            since=func.now(),  # the database's clock: those of machines differ
        )
    )
    return True


def beat(session: Session, study: str, token: str) -> LeaseRecord | None:
    """Count one more sign of life; None: the lease is another process's by now."""
    mine = (LeaseRow.study == study) & (LeaseRow.token == token)
    session.execute(update(LeaseRow).where(mine).values(beats=LeaseRow.beats + 1))
    found = record(session, study)
    return found if found is not None and found.owner.token == token else None


def release(session: Session, study: str, token: str) -> None:
    """Give a lease back; nothing happens where it is another process's by now."""
    session.execute(delete(LeaseRow).where(LeaseRow.study == study, LeaseRow.token == token))


def ask_to_end(session: Session, study: str, token: str) -> bool:
    """Leave word for the owner of a lease to end; False: it does not hold it any more."""
    found = _row(session, study, lock=True)
    if found is None or found.token != token:
        return False
    found.is_cancelled = True
    return True


def require(session: Session, study: str, token: str) -> None:
    """Refuse to write for a process that does not hold the lease any more.

    The lease cannot change hands before the transaction ends.

    Raises:
        ConflictError: Another process has taken the study over.
    """
    query = select(LeaseRow).where(LeaseRow.study == study).with_for_update(read=True)
    found = session.scalar(query)
    if found is None or found.token != token:
        raise ConflictError(lost(study, None if found is None else _record(found)))


def lost(study: str, by: LeaseRecord | None) -> str:
    """Say that a process does not run its study any more, and who does."""
    now = f"is run by {by} now" if by else "was given up since"
    return f"study {study!r} gave no sign of life for a while and {now}: this run of it ends"


def _row(session: Session, study: str, *, lock: bool = False) -> LeaseRow | None:
    query = select(LeaseRow).where(LeaseRow.study == study)
    return session.scalar(query.with_for_update() if lock else query)


def _record(found: LeaseRow) -> LeaseRecord:
    return LeaseRecord(
        owner=Owner(
            token=found.token,
            host=found.host,
            machine=found.machine,
            process_id=found.process_id,
            process_started=found.process_started,
        ),
        since=found.since,
        beats=found.beats,
        is_cancelled=found.is_cancelled,
    )


def _is_unchanged(found: LeaseRow, before: LeaseRecord) -> bool:
    return (found.token, found.beats) == (before.owner.token, before.beats)
