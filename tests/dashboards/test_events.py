from __future__ import annotations

import asyncio

from thunder_tune.dashboards.events import events
from thunder_tune.storage import Database
from thunder_tune.testing.sample_values import make_result


async def told(database: Database, study: str, *acts) -> list[str]:
    """Do one act after each event."""
    found, waiting = [], list(acts)
    async for event in events(database, study, poll_s=0):
        if event.startswith(":"):
            continue
        found.append(event.split("\n")[0])
        if waiting:
            waiting.pop(0)()
    return found


def test_each_change_is_told_until_the_study_ends(filled: Database):
    found = asyncio.run(
        told(
            filled,
            "bert",
            lambda: filled.add_trial("bert", make_result()),
            lambda: filled.update_study("bert", state="done"),
        )
    )
    assert found == ["event: progress", "event: progress", "event: progress", "event: end"]


def test_a_study_that_is_done_is_told_once(filled: Database):
    assert asyncio.run(told(filled, "vit")) == ["event: progress", "event: end"]


def test_a_study_that_is_gone_ends_the_stream(database: Database):
    assert asyncio.run(told(database, "nope")) == ["event: problem"]


def test_the_stream_ends_with_the_server(filled: Database):
    async def all_of() -> list[str]:
        return [e async for e in events(filled, "bert", poll_s=1e9, is_closing=lambda: True)]

    (only,) = asyncio.run(all_of())
    assert only.startswith("event: progress")
