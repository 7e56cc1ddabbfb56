"""Where commands get a database and workers; imported only once a command needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thunder_tune.errors import ModelError
from thunder_tune.values.job import DescribeJob, Description, Setting

if TYPE_CHECKING:
    from thunder_tune.storage import Database
    from thunder_tune.study.pool import WorkerPool


@contextmanager
def database(url: str | None, *, is_patient: bool = True) -> Iterator[Database]:
    """Open the database inside the block; errors as in `Database.open`.

    Args:
        url: Where it is.
        is_patient: Whether to wait for a server that goes away.
    """
    from thunder_tune.storage import Database

    opened = Database.open(url) if is_patient else Database.open(url, patience_s=0.0)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def pool(
    setting: Setting, *, workers: int | None = None, ray_address: str | None = None
) -> Iterator[WorkerPool]:
    """Start workers for the block and leave no process behind.

    Raises:
        WorkerError: They cannot be started.
    """
    from thunder_tune.workers import start_pool

    started = start_pool(
        device=setting.source.device,
        workers=workers,
        ray_address=ray_address,
        log_folder=setting.log_folder,
        limits=setting.limits,
    )
    try:
        yield started
    finally:
        started.close()


@contextmanager
def single_pool(setting: Setting) -> Iterator[WorkerPool]:
    """Run one worker for the block, on this machine and without Ray."""
    from thunder_tune.workers.inline_pool import InlinePool

    started = InlinePool(log_folder=setting.log_folder)
    try:
        yield started
    finally:
        started.close()


def description_of(setting: Setting) -> Description:
    """Capture a model in a child process of this machine.

    Raises:
        ModelError: The model raised, or cannot be tuned.
    """
    with single_pool(setting) as started:
        description = started.describe(DescribeJob(setting=setting))
    if description.failure is not None:
        raise ModelError(description.failure.message)
    return description
