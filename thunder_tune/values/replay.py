"""A table of measured plans of one program, on which search strategies are compared."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from thunder_tune.errors import InputError
from thunder_tune.values.codec import from_data, to_data
from thunder_tune.values.program import Program
from thunder_tune.values.screening import ClassMeasurement
from thunder_tune.values.space import SearchSpace

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """A composed plan with everything that was measured of it.

    Attributes:
        choices: For each dimension of the space the position of its choice.
        latencies_ms: One for each time that it was measured; empty: it failed.
        is_random: Whether it was drawn uniformly at random.
    """

    choices: tuple[int, ...]
    latencies_ms: tuple[float, ...]
    is_random: bool = False

    @property
    def latency_ms(self) -> float | None:
        """Median of what was measured; None where it failed."""
        return median(self.latencies_ms) if self.latencies_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTable:
    """What was recorded of one program on one machine.

    Attributes:
        model: Name of the model.
        device: Name of the chip.
        program: The captured program.
        space: Its dimensions.
        measurements: Its classes alone.
        plans: Distinct plans.
    """

    model: str
    device: str
    program: Program
    space: SearchSpace
    measurements: tuple[ClassMeasurement, ...]
    plans: tuple[RecordedPlan, ...]

    def assignment(self, plan: RecordedPlan) -> dict[str, str]:
        """Return a plan's choice for every dimension."""
        pairs = zip(self.space.dimensions, plan.choices, strict=True)
        return {d.name: d.choices[position] for d, position in pairs}

    @property
    def best_ms(self) -> float:
        """Least latency of a plan."""
        found = [ms for plan in self.plans if (ms := plan.latency_ms) is not None]
        return min(found, default=float("inf"))


def write_table(table: ReplayTable, path: Path) -> None:
    """Write a table as JSON; program and space, which nobody reads, are packed."""
    data: dict[str, Any] = to_data(table)
    packed = {name: data.pop(name) for name in ("program", "space")}
    blob = zlib.compress(json.dumps(packed, separators=(",", ":")).encode(), 9)
    document = {"version": VERSION, **data, "packed": base64.b64encode(blob).decode()}
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")


def read_table(path: Path) -> ReplayTable:
    """Read a table.

    Raises:
        InputError: The file is no table, or one of another version.
    """
    try:
        document = json.loads(path.read_text())
        version = document.pop("version", None)
        if version != VERSION:
            raise InputError(
                f"{path}: version {version} of a replay table: only {VERSION} is read"
            )
        packed = json.loads(zlib.decompress(base64.b64decode(document.pop("packed"))))
    except (ValueError, KeyError, AttributeError, zlib.error) as error:
        raise InputError(f"{path}: not a replay table ({error}): record it anew") from error
    return from_data(ReplayTable, {**document, **packed})
