"""A pool on a Ray cluster of many machines: it goes on as they come and go."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray as typed_ray
from ray.exceptions import RayError

from thunder_tune.errors import WorkerError
from thunder_tune.workers.layout import Layout, cluster_layout, devices_of
from thunder_tune.workers.ray_worker import RayWorker
from thunder_tune.workers.slot_pool import SlotPool
from thunder_tune.workers.team import Team

ray: Any = typed_ray

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks at which machines there are."""
_NODE_ID = "ray.io/node-id"
_ACCELERATOR = "accelerator_type:"


class ClusterPool(SlotPool):
    """A pool that asks Ray for the workers it lacks, for as long as it is open.

    Ray places a worker once a machine has a device for it: at once, when a machine joins, or when
    its autoscaler has made one. A lost machine costs the jobs that ran on it another attempt
    elsewhere. All machines have the fingerprint of the one that answered first; others are left
    out, GPUs of another type from the start.

    Args:
        layout: How many workers, and what they are told.
        device: "cuda" or "cpu".
        workers: Devices asked for; None: every GPU, those that join too, or one CPU slot.
        accelerator: Ray's name of the type of GPU to use, "" for any.
        owns_ray: End the connection to Ray when the pool closes.
        start_s: Seconds that Ray has to replace a lost worker.
        log_folder: On each machine, for jobs whose setting names none.
        session: Answers the jobs in the children.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        device: str,
        workers: int | None,
        accelerator: str,
        owns_ray: bool,
        start_s: float,
        log_folder: str,
        session: str,
    ) -> None:
        self._layout = layout
        self._device = device
        self._asked = workers
        self._accelerator = accelerator
        self._start_s = start_s
        self._log_folder = log_folder
        self._session = session
        self._team = Team()
        self._joining: set[RayWorker] = set()
        self._numbers = itertools.count()
        self._refusal: WorkerError | None = None
        self._over = threading.Event()
        self._owns_ray = owns_ray
        super().__init__()
        self._staff()
        self._watcher = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._watcher.start()

    def await_first(self) -> None:
        """Wait until one worker runs; the others join as soon as they do.

        Raises:
            WorkerError: None does within `start_s` seconds.
        """

        def is_decided() -> bool:
            return bool(self._workers) or not self._joining

        with self._changed:
            self._changed.wait_for(is_decided, self._start_s)
            if self._workers:
                return
        raise self._refusal or WorkerError(
            f"no worker started within {self._start_s:.3g} s: no machine of the Ray cluster has a "
            "free device; look at it with ray status"
        )

    def close(self) -> None:
        """Stop all workers, those too that wait for a device."""
        self._over.set()
        with self._changed:
            joining = list(self._joining)
        for worker in joining:
            worker.close()
        super().close()
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            # Ray raises what its connection meets, while the head node is away.
            with suppress(RayError, RuntimeError, OSError):
                self._staff()

    def _staff(self) -> None:
        """Ask Ray for the workers that are missing."""
        wanted = self._wanted()
        with self._changed:
            missing = wanted - len(self._workers) - len(self._joining)
            for _ in range(0 if self._is_closing else missing):
                worker = self._new_worker()
                self._joining.add(worker)
                threading.Thread(target=self._join, args=(worker,), daemon=True).start()

    def _wanted(self) -> int:
        if self._device != "cuda":
            return self._asked or 1
        there = devices_of(_nodes(self._accelerator), "GPU", without=self._team.unfit)
        return (self._asked or there) * self._layout.lanes

    def _new_worker(self) -> RayWorker:
        placement: dict[str, Any] = {}
        if self._accelerator:
            placement["accelerator_type"] = self._accelerator
        if unfit := self._team.unfit:
            placement["label_selector"] = {_NODE_ID: f"!in({','.join(sorted(unfit))})"}
        options = self._layout.options(
            f"worker-{next(self._numbers)}", log_folder=self._log_folder, session=self._session
        )
        return RayWorker(
            options,
            device=self._device,
            start_s=self._start_s,
            lanes=self._layout.lanes,
            placement=placement,
            team=self._team,
        )

    def _join(self, worker: RayWorker) -> None:
        """Wait for Ray to place a worker, however long that takes."""
        refusal: WorkerError | None = None
        try:
            worker.await_ready(is_patient=True)
        except WorkerError as error:
            refusal = error
            worker.close()
        with self._changed:
            self._joining.discard(worker)
            if refusal is None:
                self.add(worker)
            else:
                self._refusal = refusal
                if not self._is_closing:
                    logger.warning("%s", refusal)
            self._changed.notify_all()


def start_cluster_pool(
    *,
    device: str,
    workers: int | None,
    log_folder: str,
    start_s: float,
    session: str,
    owns_ray: bool,
) -> ClusterPool:
    """Start a pool on the cluster that Ray is connected to; see `start_ray_pool`.

    Raises:
        WorkerError: No machine has such a device, or no worker starts; nothing stays behind.
    """
    pool: ClusterPool | None = None
    try:
        accelerator = _accelerator() if device == "cuda" else ""
        nodes = _nodes(accelerator)
        if device == "cuda" and workers is None and not devices_of(nodes, "GPU"):
            raise WorkerError(
                "device 'cuda': no machine of the Ray cluster has a GPU: use --device cpu, or "
                "--workers N where machines with GPUs join later"
            )
        pool = ClusterPool(
            cluster_layout(nodes, device, workers),
            device=device,
            workers=workers,
            accelerator=accelerator,
            owns_ray=owns_ray,
            start_s=start_s,
            log_folder=log_folder,
            session=session,
        )
        pool.await_first()
        return pool
    except BaseException:  # Ctrl-C during the start too must leave nothing behind
        if pool is not None:
            pool.close()
        elif owns_ray:
            ray.shutdown()
        raise


def _nodes(accelerator: str) -> list[Mapping[str, Any]]:
    """Return the machines that are there, with a type of GPU where that matters."""
    name = _ACCELERATOR + accelerator
    alive: list[Mapping[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in alive if not accelerator or name in node["Resources"]]


def _accelerator() -> str:
    """Return the type of which there are most GPUs, "" where there is only one."""
    kinds: Counter[str] = Counter()
    for node in _nodes(""):
        resources = node["Resources"]
        names = [name for name in resources if name.startswith(_ACCELERATOR)]
        if names and resources.get("GPU"):
            kinds[names[0].removeprefix(_ACCELERATOR)] += int(resources["GPU"])
    if len(kinds) < 2:
        return ""
    (most, _), *others = kinds.most_common()
    left_out = ", ".join(f"{count} {kind}" for kind, count in others)
    logger.warning("the GPUs are of several types: %s are used, not %s", most, left_out)
    return most
