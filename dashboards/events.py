"""Server-sent events of a study: small, and the same few queries however many trials it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from thunder_tune.errors import ThunderTuneError
from thunder_tune.storage import Database

POLL_S = 2.0
NAP_S = 0.2
KEEP_ALIVE = 10
"""Polls without news after which a comment is sent, so that a lost reader is noticed."""


async def events(
    database: Database,
    study: str,
    poll_s: float = POLL_S,
    is_closing: Callable[[], bool] = lambda: False,
) -> AsyncIterator[str]:
    """Yield a `progress` event at once and at each change; end once the study does not run.

    Args:
        database: To poll.
        study: Name of an existing study.
        poll_s: Seconds between two looks.
        is_closing: Whether the server is about to end, and the stream with it.
    """
    told, quiet = "", 0
    while True:
        try:
            news = await run_in_threadpool(_look, database, study)
        except ThunderTuneError as error:  # deleted, or the database went away
            yield _event("problem", {"error": str(error)})
            return
        written = _event("progress", news)
        quiet = 0 if written != told else quiet + 1
        if quiet == 0:
            told = written
            yield written
        elif quiet % KEEP_ALIVE == 0:
            yield ": still here\n\n"
        if news["state"] != "running":
            yield _event("end", news)
            return
        waited_s = 0.0
        while waited_s < poll_s and not is_closing():
            await asyncio.sleep(NAP_S)
            waited_s += NAP_S
        if is_closing():
            return


def _look(database: Database, study: str) -> dict[str, object]:
    count, last = database.count(study)
    return {"state": database.study(study).state, "results": count, "last": last}


def _event(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
