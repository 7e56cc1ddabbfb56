"""Choosing how to run: on Ray, or without it where it cannot start."""

from __future__ import annotations

import logging

from thunder_tune.study.pool import WorkerPool
from thunder_tune.values.job import Limits
from thunder_tune.workers.child_process import SESSION
from thunder_tune.workers.inline_pool import InlinePool

logger = logging.getLogger(__name__)


def start_pool(
    *,
    device: str,
    workers: int | None,
    ray_address: str | None,
    log_folder: str,
    limits: Limits,
    session: str = SESSION,
) -> WorkerPool:
    """Start a pool for a study; takes some seconds.

    Args:
        device: "cuda" or "cpu".
        workers: Devices to use at once; None: every GPU, or one CPU slot.
        ray_address: Of a running Ray cluster; None: a local Ray of this process's own, or where
            that cannot start and one worker is enough, no Ray.
        log_folder: Folder for log files of jobs whose setting names none; "": no logs.
        limits: `start_s` bounds the start of each worker.
        session: "module:attribute" that answers the jobs; for tests.

    Raises:
        InputError: More GPUs are asked for than there are.
        WorkerError: No worker can be started.
    """
    from thunder_tune.workers import ray_pool  # imports ray, which takes a second

    try:
        return ray_pool.start_ray_pool(
            device=device,
            workers=workers,
            ray_address=ray_address,
            log_folder=log_folder,
            limits=limits,
            session=session,
        )
    except ray_pool.RayUnavailable as error:
        if ray_address is not None or (workers or 1) > 1:
            raise
        logger.warning("%s; going on without Ray, on one worker", error)
        return InlinePool(log_folder=log_folder, session=session)
