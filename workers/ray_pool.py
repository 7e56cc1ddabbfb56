"""A pool of Ray actors, one for each GPU or CPU slot."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray as typed_ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from thunder_tune.errors import InputError, WorkerError
from thunder_tune.values.comparison import Round
from thunder_tune.values.job import (
    LANES_VARIABLE,
    CompareJob,
    DescribeJob,
    Description,
    Limits,
    MeasureJob,
)
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import TrialResult
from thunder_tune.workers.actor import CONTROL, TrialActor
from thunder_tune.workers.child_process import SESSION, ChildOptions, with_package_path
from thunder_tune.workers.slot_pool import SlotPool
from thunder_tune.workers.trial_child import JobCancelled

ray: Any = typed_ray  # its annotations miss concurrency groups, and half of it has none

_MOST_LANES = 5
"""Actors for each GPU at most: more would wait for the device rather than compile."""
_CORES_PER_LANE = 3

_CONTROL_S = 15.0
"""For an actor to answer a call of its control group."""
_OBJECT_STORE_BYTES = 100 * 2**20
"""Jobs and results are small; Ray's own default takes a third of the memory."""

_ENVIRONMENT: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # ours ends the child, Ray's would end the actor
}


class RayUnavailable(WorkerError):
    """Ray itself cannot be started or reached."""


class RayWorker:
    """A worker whose `TrialChild` lives in a Ray actor."""

    def __init__(
        self, options: ChildOptions, *, device: str, start_s: float, lanes: int = 1
    ) -> None:
        """Ask Ray for the actor; `await_ready` tells when it runs.

        Args:
            options: For its children.
            device: "cuda" for a GPU, or one lane of it; "cpu" for one CPU slot.
            lanes: Actors that share a GPU.
            start_s: Seconds that Ray has to start it.
        """
        self._options = options
        self._start_s = start_s
        # A GPU's actor must not need a free CPU too: another node's slots may be taken.
        gpu = {"num_gpus": 1 / lanes, "num_cpus": 0}
        resources = gpu if device == "cuda" else {"num_cpus": 1}
        self._remote = ray.remote(concurrency_groups={CONTROL: 1}, **resources)(TrialActor)
        self._actor = self._remote.remote(options)
        self._is_ready = False

    def await_ready(self) -> None:
        """Wait until the actor runs.

        Raises:
            WorkerError: It does not within its time; most often nothing is free.
        """
        try:
            ray.get(self._actor.ready.remote(), timeout=self._start_s)
            self._is_ready = True
        except GetTimeoutError as error:
            raise WorkerError(
                f"{self._options.name} did not start within {self._start_s:.3g} s: "
                "Ray has no free device for it"
            ) from error
        except RayError as error:
            raise WorkerError(f"{self._options.name} did not start: {_line(error)}") from error

    def describe(self, job: DescribeJob, epoch: int) -> Description:
        """Describe a model."""
        description: Description = self._call("describe", job, epoch)
        return description

    def measure(self, job: MeasureJob, epoch: int) -> TrialResult:
        """Measure a candidate."""
        result: TrialResult = self._call("measure", job, epoch)
        return result

    def screen(self, job: ScreenJob, epoch: int) -> Screening:
        """Measure classes alone."""
        screening: Screening = self._call("screen", job, epoch)
        return screening

    def compare(self, job: CompareJob, timeout_s: float, epoch: int) -> Round:
        """Run a round of a comparison."""
        round_: Round = self._call("compare", job, timeout_s, epoch)
        return round_

    def cancel(self, epoch: int) -> None:
        """End the running job; an actor that does not answer is killed, and its child with it."""
        try:
            ray.get(self._actor.cancel.remote(epoch), timeout=_CONTROL_S)
        except RayError:
            self._kill()

    def restart(self) -> None:
        """Ask Ray for another actor, on whichever node has a free device.

        Raises:
            WorkerError: None has.
        """
        self._kill()
        try:
            self._actor = self._remote.remote(self._options)
        except (RayError, RuntimeError) as error:
            raise WorkerError(
                f"{self._options.name} cannot be restarted: {_line(error)}"
            ) from error
        self.await_ready()

    def close(self) -> None:
        """End the actor, its running job and all its processes."""
        if not ray.is_initialized():
            return
        if self._is_ready:
            with suppress(RayError):
                ray.get(self._actor.close.remote(), timeout=_CONTROL_S)
        self._kill()

    def _call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - the method's own
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except JobCancelled:
            raise JobCancelled("the job was cancelled") from None
        except RayTaskError as error:
            raise WorkerError(_line(error.cause)) from error
        except RayError as error:
            raise WorkerError(f"{self._options.name} died: {_line(error)}") from error

    def _kill(self) -> None:
        self._is_ready = False
        with suppress(RayError, RuntimeError, ValueError):
            ray.kill(self._actor, no_restart=True)


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


def start_ray_pool(
    *,
    device: str,
    workers: int | None,
    ray_address: str | None,
    log_folder: str,
    limits: Limits,
    session: str = SESSION,
) -> RayPool:
    """Connect to Ray, or start it here, and start one actor for each device.

    Args:
        device: "cuda" or "cpu".
        workers: Devices to use; None: every GPU, or one CPU slot.
        ray_address: Of a running cluster; None: a Ray of this process's own.
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
    started: list[RayWorker] = []
    try:
        devices = _count(device, workers)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        here = os.cpu_count() or 1  # a local Ray is told of the slots only, not of the cores
        cores = int(min(n["Resources"].get("CPU", 1) for n in nodes)) if ray_address else here
        lanes = _lanes(device, cores, math.ceil(devices / max(1, len(nodes))))
        count = devices * lanes
        environment: dict[str, str | None] = {
            "OMP_NUM_THREADS": _threads(device, count),
            LANES_VARIABLE: str(lanes),
        }
        if lanes > 1:  # each would start a compiling process for every core
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(2, cores // 2))
        for number in range(count):
            options = ChildOptions(
                name=f"worker-{number}",
                log_folder=log_folder,
                slots=math.ceil(count / max(1, len(nodes))),
                session=session,
                environment=environment,
            )
            started.append(RayWorker(options, device=device, start_s=limits.start_s, lanes=lanes))
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
    local: dict[str, Any] = {"num_cpus": slots, "object_store_memory": _OBJECT_STORE_BYTES}
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _environment(_ENVIRONMENT):
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
        raise RayUnavailable(f"cannot connect to {where}: {_line(error)}") from error
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


def _lanes(device: str, cores: int, devices: int) -> int:
    """Return how many actors share a GPU, so that some compile while one is measured.

    Args:
        device: "cuda" or "cpu"; CPU slots are not shared.
        cores: Of a node.
        devices: GPUs of a node that are used.
    """
    if device != "cuda":
        return 1
    return max(1, min(_MOST_LANES, cores // (devices * _CORES_PER_LANE)))


def _threads(device: str, count: int) -> str | None:
    """Return OMP_NUM_THREADS for the children; None: PyTorch's own default.

    Ray sets it to 1 in its actors, which the children must not inherit.
    """
    asked = os.environ.get("OMP_NUM_THREADS")
    if asked is not None or device == "cuda" or count == 1:
        return asked
    return str(max(1, (os.cpu_count() or 1) // count))


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


def _line(error: object) -> str:
    """Return the first line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
