"""A pool of Ray actors, one for each GPU or CPU slot, on a Ray started here or on a cluster."""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray as typed_ray

from thunder_tune.errors import InputError, WorkerError
from thunder_tune.values.job import Limits
from thunder_tune.workers.child_process import SESSION, with_package_path
from thunder_tune.workers.cluster_pool import start_cluster_pool
from thunder_tune.workers.layout import local_layout
from thunder_tune.workers.ray_environment import OBJECT_STORE_BYTES, RAY_VARIABLES
from thunder_tune.workers.ray_worker import RayWorker, first_line
from thunder_tune.workers.slot_pool import SlotPool

ray: Any = typed_ray  # its annotations miss concurrency groups, and half of it has none


class RayPool(SlotPool):
    """Runs jobs on Ray actors; see `SlotPool`."""

    def __init__(self, workers: Sequence[RayWorker], *, owns_ray: bool) -> None:
        """Take over workers that are ready; `owns_ray`: end Ray when the pool closes."""
        self._owns_ray = owns_ray
        super().__init__(workers)

    def close(self) -> None:
        """Stop all workers, and Ray where the pool started it."""
        super().close()
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()


class RayUnavailable(WorkerError):
    """Ray itself cannot be started or reached."""


def start_ray_pool(
    *,
    device: str,
    workers: int | None,
    ray_address: str | None,
    log_folder: str,
    limits: Limits,
    session: str = SESSION,
) -> SlotPool:
    """Connect to Ray, or start it here, and start one actor for each device.

    Args:
        device: "cuda" or "cpu".
        workers: Devices to use; None: every GPU, or one CPU slot.
        ray_address: Of a running cluster (see `ClusterPool`); None: a Ray of this process's own.
        log_folder: Folder, on each node, for log files of jobs whose setting names none.
        limits: `start_s` bounds the start of each actor.
        session: "module:attribute" that answers the jobs in the children.

    Raises:
        InputError: More GPUs, or CPU slots, are asked for than there are.
        RayUnavailable: Ray cannot be started or reached.
        WorkerError: An actor cannot be started; nothing stays behind.
    """
    owns_ray = not ray.is_initialized()
    if owns_ray and ray_address is None and device != "cuda":
        _check_slots(workers or 1)
    if owns_ray:
        _connect(ray_address, slots=workers or 1)
    if ray_address is not None:
        return start_cluster_pool(
            device=device,
            workers=workers,
            log_folder=log_folder,
            start_s=limits.start_s,
            session=session,
            owns_ray=owns_ray,
        )
    started: list[RayWorker] = []
    try:
        layout = local_layout(device, _count(device, workers))
        for number in range(layout.count):
            options = layout.options(f"worker-{number}", log_folder=log_folder, session=session)
            started.append(
                RayWorker(options, device=device, start_s=limits.start_s, lanes=layout.lanes)
            )
        for worker in started:
            worker.await_ready()
        return RayPool(started, owns_ray=owns_ray)
    except BaseException:  # Ctrl-C during the start too must leave nothing behind
        for worker in started:
            worker.close()
        if owns_ray:
            ray.shutdown()
        raise


def _connect(address: str | None, *, slots: int) -> None:
    """Start or join Ray without a word to the terminal."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    # It has no public switch for "(raylet) A worker died ..." on the driver's standard output.
    ray._private.worker._worker_logs_enabled = False
    local: dict[str, Any] = {"num_cpus": slots, "object_store_memory": OBJECT_STORE_BYTES}
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _environment(RAY_VARIABLES):
            ray.init(
                address=address or "local",  # without it RAY_ADDRESS would decide
                include_dashboard=False if address is None else None,
                configure_logging=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=f"thunder-tune-{uuid.uuid4().hex}",
                **({} if address else local),
            )
    except Exception as error:  # Ray raises whatever its start meets, plain Exception too
        with suppress(Exception):
            ray.shutdown()
        where = f"the Ray cluster at {address!r}" if address else "a local Ray"
        raise RayUnavailable(f"cannot connect to {where}: {first_line(error)}") from error
    finally:
        # Ray's handler of SIGTERM exits in order, which is better than none but not than the
        # application's own.
        if in_main_thread and handler not in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, handler)


def _check_slots(workers: int) -> None:
    """Refuse CPU slots of less than a core: they would share memory and time to no end."""
    cores = os.cpu_count() or 1
    if workers > cores:
        raise InputError(f"workers {workers}: this machine has {cores} cores: use at most {cores}")


def _count(device: str, workers: int | None) -> int:
    """Return how many actors to start."""
    if device != "cuda":
        return workers or 1
    there = int(ray.cluster_resources().get("GPU", 0))
    if there == 0:
        raise WorkerError("device 'cuda': Ray sees no GPU: use --device cpu")
    if workers is not None and workers > there:
        raise InputError(f"workers {workers}: Ray sees {there} GPU(s): use at most {there}")
    return workers or there


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, and the path to this package, for a while."""
    path = with_package_path(os.environ.get("PYTHONPATH", ""))
    wanted = {**variables, **os.environ, "PYTHONPATH": path}
    before = {name: os.environ.get(name) for name in (*variables, "PYTHONPATH")}
    os.environ.update({name: wanted[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
