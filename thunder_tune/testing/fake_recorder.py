"""A recorder without a GPU: what it records is run again, and overwrites the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class FakeRecorder:
    """Behaves like `CudaRecorder` towards memory.

    Attributes:
        is_free: Whether it may be used.
        records: Recordings made.
        replays: Replays of them all.
    """

    def __init__(self) -> None:
        self.is_free = True
        self.records = 0
        self.replays = 0

    def record(
        self, work: Callable[[], Any], written: Sequence[torch.Tensor] = ()
    ) -> FakeRecording:
        """Record work; what it returns holds no values before the first replay."""
        self.records += 1
        kept = [x.detach().clone() for x in written]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            made, again = work(), work()
            for x, value in zip(written, kept, strict=True):
                x.copy_(value)
        return FakeRecording(self, work, made, again)


class FakeRecording:
    """Work whose replays write to the memory of its first results.

    Attributes:
        results: Of the first run; NaN before the first replay.
    """

    def __init__(
        self,
        recorder: FakeRecorder,
        work: Callable[[], Any],
        results: Any,  # noqa: ANN401
        again: Any,  # noqa: ANN401
    ) -> None:
        self.results = results
        self._recorder = recorder
        self._work = work
        # What comes out of two runs as one tensor is an input, which is not this memory's.
        self._is_own = [
            isinstance(x, torch.Tensor) and x.data_ptr() != y.data_ptr()
            for x, y in zip(_leaves(results), _leaves(again), strict=True)
        ]
        for x, is_own in zip(_leaves(results), self._is_own, strict=True):
            if is_own and x.is_floating_point():
                torch.as_strided(x.data, (1,) * x.dim(), x.stride()).fill_(float("nan"))

    def replay(self) -> None:
        """Run the work again and put its results where the first ones were."""
        self._recorder.replays += 1
        with torch.no_grad():
            made = self._work()
        for x, new, is_own in zip(_leaves(self.results), _leaves(made), self._is_own, strict=True):
            if is_own:
                # By storage: results may be expanded; and torch sees no write, as of a graph's.
                x.untyped_storage().copy_(new.untyped_storage())


def _leaves(results: Any) -> list[Any]:  # noqa: ANN401 - what a work returns
    state = getattr(results, "state", None)
    if state is not None:  # of a forward pass
        return tree_leaves([list(results.outputs), list(results.saved), state])
    return tree_leaves(results)
