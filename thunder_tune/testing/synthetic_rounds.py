"""Confirmations made of synthetic noise, of which the truth is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from thunder_tune.study.bench import EXTRA_ROUNDS, compare_now
from thunder_tune.study.confirmation import ROUNDS
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.comparison import Block, Comparison, Contender, Round
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob, Setting
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import EXECUTOR, PROGRAM
from thunder_tune.values.trial import TrialResult

Shape = Literal["normal", "heavy"]

MOST_ROUNDS = ROUNDS + EXTRA_ROUNDS
_LEVEL_MS = 10.0
_COMMON = 0.02
"""Processes differ by so much (standard deviation) for all programs alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What adds to ln(latency) of one call; all are standard deviations unless said otherwise.

    Attributes:
        call: Of single calls.
        process: Of one program in one process: what no repeat in that process averages out.
        shape: "normal", or "heavy": Student's t of 3 degrees of freedom, scaled to the same
            standard deviation; of calls and of processes.
        correlation: Of a call with the one before it, whatever their programs.
        drift: Of a random walk and of a trend over the process, shared by neighbours.
        clocks: Distance of two clocks between which the device switches once in seven blocks.
        uneven: The first candidate's `process` is so many times that of the others.
    """

    call: float = 0.0076
    process: float = 0.005
    shape: Shape = "normal"
    correlation: float = 0.0
    drift: float = 0.0
    clocks: float = 0.0
    uneven: float = 1.0


NOISES = {
    "normal": Noise(),
    "heavy tail": Noise(shape="heavy"),
    "drift": Noise(drift=0.015),
    "autocorrelation 0.9": Noise(call=0.0035, correlation=0.9),
    "two clocks": Noise(clocks=0.03, process=0.003),
    "quiet processes": Noise(process=0.001, drift=0.015),
    "loud": Noise(call=0.03, process=0.003),
    "one uneven": Noise(process=0.003, uneven=3.0),
}
"""Medians of blocks of ten calls vary by 0.3 % and processes by 0.5 %, as on an H200, except
where the name says otherwise."""


def contenders_of(baselines: int, candidates: int) -> tuple[Contender, ...]:
    """Return contenders "b0", "b1", ..., "c0", "c1", ...; all candidates are composed."""
    found = [
        Contender(name=f"b{i}", assignment={PROGRAM: f"back end {i}"}, is_baseline=True)
        for i in range(baselines)
    ]
    found += [
        Contender(name=f"c{i}", assignment={f"{EXECUTOR}linear-1": f"kernel {i}"})
        for i in range(candidates)
    ]
    return tuple(found)


def synthetic_confirmations(
    noise: Noise,
    contenders: Sequence[Contender],
    levels: Sequence[float],
    *,
    runs: int,
    blocks: int = 8,
    calls: int = 10,
    seed: int = 0,
) -> Iterator[Comparison]:
    """Yield confirmations by the product's own rule, extra rounds included.

    Args:
        noise: Of the measurement.
        contenders: Distinct names.
        levels: True ln(latency) of each, over any unit.
        runs: Number of confirmations.
        blocks: Of each contender in a round.
        calls: In a block.
        seed: Of everything random.
    """
    generator = torch.Generator().manual_seed(seed)
    made = _Sampler(noise, levels, blocks, calls, generator)
    names = [c.name for c in contenders]
    setting = Setting(source=ModelSource(name="synthetic"))
    for _ in range(runs):
        pool = _Replaying(made.rounds(names, MOST_ROUNDS))
        yield compare_now(
            setting,
            contenders,
            pool=pool,
            observer=SilentObserver(),
            rounds=ROUNDS,
            extra_rounds=EXTRA_ROUNDS,
        )


class _Sampler:
    """Draws rounds."""

    def __init__(
        self,
        noise: Noise,
        levels: Sequence[float],
        blocks: int,
        calls: int,
        generator: torch.Generator,
    ) -> None:
        self._noise = noise
        self._levels = torch.tensor(levels, dtype=torch.float64)
        self._blocks = blocks
        self._calls = calls
        self._generator = generator

    def rounds(self, names: Sequence[str], count: int) -> Iterator[Round]:
        """Yield rounds whose blocks are in random sweeps."""
        programs = len(names)
        order = torch.rand(count, self._blocks, programs, generator=self._generator).argsort(-1)
        order = order.view(count, -1)
        process = [self._noise.process * (self._noise.uneven if n == "c0" else 1) for n in names]
        level = self._levels + torch.tensor(process) * self._draw(count, programs)
        common = _COMMON * self._normal(count, 1)
        logs = level.gather(1, order) + common + self._shared(count, order.shape[1])
        times = _LEVEL_MS * (logs[..., None] + self._of_calls(count, order.shape[1])).exp()
        for number in range(count):
            rows = zip(order[number].tolist(), times[number].tolist(), strict=True)
            yield Round(
                process_id=1 + number,
                blocks=tuple(
                    Block(
                        contender=names[which],
                        position=position,
                        samples_ms=tuple(samples),
                        started_at=float(position),
                    )
                    for position, (which, samples) in enumerate(rows)
                ),
            )

    def _shared(self, count: int, length: int) -> Tensor:
        """Return what neighbouring blocks have in common: drift and the clock of the moment."""
        trend = self._normal(count, 1) * torch.linspace(0, 1, length, dtype=torch.float64)
        walk = self._normal(count, length).cumsum(1) / math.sqrt(length)
        begin = torch.randint(0, 2, (count, 1), generator=self._generator)
        switches = torch.rand(count, length, generator=self._generator) < 1 / 7
        clock = (begin + switches.cumsum(1)) % 2
        return self._noise.drift * (trend + walk) + self._noise.clocks * clock

    def _of_calls(self, count: int, length: int) -> Tensor:
        drawn = self._draw(count, length * self._calls)
        if self._noise.correlation:
            rho = self._noise.correlation
            fresh = math.sqrt(1 - rho**2)
            for i in range(1, drawn.shape[1]):
                drawn[:, i] = rho * drawn[:, i - 1] + fresh * drawn[:, i]
        return self._noise.call * drawn.view(count, length, self._calls)

    def _draw(self, *shape: int) -> Tensor:
        drawn = self._normal(*shape)
        if self._noise.shape == "heavy":
            chi = sum(self._normal(*shape) ** 2 for _ in range(3))
            drawn = drawn / torch.as_tensor(chi).sqrt()  # t over sqrt(3): its standard deviation
        return drawn

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)


class _Replaying:
    """A pool that hands out rounds made beforehand."""

    capacity = 1

    def __init__(self, rounds: Iterator[Round]) -> None:
        self._rounds = rounds

    def compare(self, job: CompareJob, timeout_s: float) -> Round:
        """Return the next one."""
        return next(self._rounds)

    def describe(self, job: DescribeJob) -> Description:
        """Refuse."""
        raise NotImplementedError

    def submit(self, job: MeasureJob | ScreenJob) -> int:
        """Refuse."""
        raise NotImplementedError

    def wait(self, timeout_s: float) -> list[tuple[int, TrialResult | Screening]]:
        """Return nothing."""
        return []

    def cancel(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
