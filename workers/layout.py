"""How many workers share a machine, and what each is told about that."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunder_tune.values.job import LANES_VARIABLE
from thunder_tune.workers.child_process import ChildOptions

_MOST_LANES = 5
"""Actors for each GPU at most: more would wait for the device rather than compile."""
_CORES_PER_LANE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How workers lie on machines.

    Attributes:
        device: "cuda" or "cpu".
        count: Actors to begin with.
        slots: Actors of one machine, at most.
        lanes: Actors that share a GPU, so that some compile while one is measured.
        cores: Of the smallest machine.
    """

    device: str
    count: int
    slots: int
    lanes: int
    cores: int

    def options(self, name: str, *, log_folder: str, session: str) -> ChildOptions:
        """Return what a worker tells its children."""
        environment: dict[str, str | None] = {
            "OMP_NUM_THREADS": self._threads(),
            LANES_VARIABLE: str(self.lanes),
        }
        if self.lanes > 1:  # each would start a compiling process for every core
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(2, self.cores // 2))
        return ChildOptions(
            name=name,
            log_folder=log_folder,
            slots=self.slots,
            session=session,
            environment=environment,
        )

    def _threads(self) -> str | None:
        """Return OMP_NUM_THREADS for the children; None: PyTorch's own default.

        Ray sets it to 1 in its actors, which the children must not inherit.
        """
        asked = os.environ.get("OMP_NUM_THREADS")
        if asked is not None or self.device == "cuda" or self.slots == 1:
            return asked
        return str(max(1, self.cores // self.slots))


def local_layout(device: str, devices: int) -> Layout:
    """Lay out workers on this machine, on so many GPUs or CPU slots."""
    cores = os.cpu_count() or 1  # a local Ray is told of the slots only, not of the cores
    lanes = _lanes(device, cores, devices)
    count = devices * lanes
    return Layout(device=device, count=count, slots=count, lanes=lanes, cores=cores)


def cluster_layout(nodes: Sequence[Mapping[str, Any]], device: str, workers: int | None) -> Layout:
    """Lay out workers on the machines of a cluster.

    Args:
        nodes: As Ray lists those that may be used.
        device: "cuda" or "cpu".
        workers: Devices asked for; None: every GPU, or one CPU slot.
    """
    resource = "GPU" if device == "cuda" else "CPU"
    useful = [node for node in nodes if node["Resources"].get(resource)]
    cores = min((int(n["Resources"].get("CPU", 1)) for n in useful), default=1)
    on_one = max((devices_of([node], resource) for node in useful), default=1)
    there = devices_of(useful, "GPU") if device == "cuda" else 1
    devices = workers or there
    lanes = _lanes(device, cores, max(1, min(on_one, devices)))
    slots = max(1, min(on_one, devices)) * lanes
    return Layout(device=device, count=devices * lanes, slots=slots, lanes=lanes, cores=cores)


def devices_of(
    nodes: Sequence[Mapping[str, Any]], resource: str, *, without: Collection[str] = ()
) -> int:
    """Count a resource of the machines of a cluster, without those of some ids."""
    return sum(
        int(node["Resources"].get(resource, 0)) for node in nodes if node["NodeID"] not in without
    )


def _lanes(device: str, cores: int, devices: int) -> int:
    """Return how many actors share a GPU.

    Args:
        device: "cuda" or "cpu"; CPU slots are not shared.
        cores: Of a machine.
        devices: GPUs of a machine that are used.
    """
    if device != "cuda":
        return 1
    return max(1, min(_MOST_LANES, cores // (devices * _CORES_PER_LANE)))
