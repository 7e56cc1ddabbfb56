"""Our timing of programs against independent tools.

Run: python -m benchmarks.agreement [--device cpu|cuda]
Tools: Triton's `do_bench`, `torch.utils.benchmark.Timer`, and the sum of the kernels that the
profiler sees; on a CPU the timer alone. Each stands between two timings of ours, so that a clock
that drifts shows as a difference of these two. What differs by more than 2 % is explained by how
the tool measures, or said to differ. A first call of a compiled program takes half a minute.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils.benchmark import Timer

from thunder_tune.compiler.backends import whole_program
from thunder_tune.machine import current_fingerprint
from thunder_tune.measure.kernels import profile_step
from thunder_tune.measure.steps import Inputs, Step, forward_step
from thunder_tune.measure.timing import rotation, time_step
from thunder_tune.models import load
from thunder_tune.values.job import TimingRequest
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Timing

_VIT = ModelSource(name="vit_b_16", device="cuda", dtype="bfloat16", batch_size=128)
CUDA = (
    (_VIT, "eager"),
    (_VIT, "torch.compile"),
    (replace(_VIT, name="resnet50"), "eager"),
    (replace(_VIT, name="mlp", batch_size=65536), "eager"),
    (ModelSource(name="mlp", device="cuda"), "eager"),
)
CPU = (
    (ModelSource(name="mlp", batch_size=256), "eager"),
    (ModelSource(name="nanogpt", batch_size=2), "eager"),
    (ModelSource(name="resnet18"), "eager"),
)
AGREES = 0.02
HOST_BOUND = 0.9
"""A program is as slow as its host where issuing a call takes so much of a call."""
SECONDS = 1.0
REQUEST = TimingRequest(precision=0.002, min_repeats=20, max_s=2 * SECONDS)

Tool = Callable[[Step, Sequence[Inputs]], float]
"""Milliseconds of a call."""


@dataclass(frozen=True)
class Row:
    """One tool's figure beside ours."""

    tool: str
    theirs_ms: float
    before: Timing
    after: Timing

    @property
    def ours_ms(self) -> float:
        """Ours, before and after."""
        return (self.before.latency_ms + self.after.latency_ms) / 2

    @property
    def difference(self) -> float:
        """Theirs over ours, less 1."""
        return self.theirs_ms / self.ours_ms - 1.0

    def said(self) -> str:
        """Say whether the two agree, or why they need not."""
        drift = abs(self.after.latency_ms / self.before.latency_ms - 1.0)
        host = self.before.host_ms
        if abs(self.difference) <= AGREES:
            return "agrees"
        if drift > AGREES:
            return f"ours moved by {drift:.1%} meanwhile"
        if host is not None and host >= HOST_BOUND * self.ours_ms:
            return {
                "do_bench": "the host is slower: launches hide behind do_bench's flush of L2",
                "profiler": "the host is slower: the device waits, which kernels do not show",
            }.get(self.tool, "differs")
        if self.tool == "do_bench" and self.difference > 0:
            return "do_bench empties L2 before each call; a loop finds weights there"
        if self.tool == "profiler" and self.difference < 0:
            return "gaps between kernels, which belong to a call and to no kernel"
        return "differs"


def do_bench(step: Step, inputs: Sequence[Inputs]) -> float:
    """Triton's: events around each call, L2 emptied before it."""
    from triton.testing import do_bench as triton_do_bench

    cycle = itertools.cycle(inputs)
    found: float = triton_do_bench(
        lambda: step(next(cycle)), warmup=100, rep=1000 * SECONDS, return_mode="median"
    )
    return found


def timer(step: Step, inputs: Sequence[Inputs]) -> float:
    """torch's: the host's clock around blocks of calls, the device waited for at their ends."""
    names = {"step": step, "cycle": itertools.cycle(inputs)}
    made = Timer("step(next(cycle))", globals=names, num_threads=torch.get_num_threads())
    return float(made.blocked_autorange(min_run_time=SECONDS).median) * 1e3


def profiler(step: Step, inputs: Sequence[Inputs]) -> float:
    """The profiler's: all kernels of a call, medians over calls."""
    quick = TimingRequest(precision=0.05, max_s=0.2)
    return profile_step(step, inputs, device="cuda", calls=20, request=quick).work_ms


def rows(source: ModelSource, back_end: str, tools: Mapping[str, Tool]) -> Iterator[Row]:
    """Time one program with every tool, and with ours before and after each."""
    loaded = load(source)
    step = forward_step(whole_program(loaded.model, back_end))
    inputs = rotation([loaded.make_inputs(seed) for seed in range(3)], device=source.device)
    step(inputs[0])  # compiles

    def ours() -> Timing:
        return time_step(step, inputs, device=source.device, request=REQUEST)

    before = ours()
    for name, tool in tools.items():
        theirs, after = tool(step, inputs), ours()
        yield Row(name, theirs, before, after)
        before = after


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    on_cuda = asked.device == "cuda"
    tools: dict[str, Tool] = {"timer": timer}
    if on_cuda:
        tools = {"do_bench": do_bench, **tools, "profiler": profiler}
    started = time.monotonic()
    print(f"{current_fingerprint(asked.device).device}\n")
    print("| program | tool | theirs ms | ours ms, before and after | difference | |")
    print("|---|---|---|---|---|---|")
    for source, back_end in CUDA if on_cuda else CPU:
        for row in rows(source, back_end, tools):
            marks = sorted({*row.before.marks, *row.after.marks})
            print(
                f"| {source.name} {source.batch_size}, {back_end} | {row.tool} "
                f"| {row.theirs_ms:.4g} | {row.before.latency_ms:.4g}, {row.after.latency_ms:.4g} "
                f"| {row.difference:+.1%} | {'; '.join([row.said(), *marks])} |",
                flush=True,
            )
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
