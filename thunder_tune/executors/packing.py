"""Weights prepared once for a kernel: folded, concatenated, quantized; and scales found once.

A kernel that wants its weights in another form makes that form at its first call and keeps it for
as long as the weights are the same: a weight that was replaced or written to is packed again. What
a candidate keeps belongs to it and goes with it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

T = TypeVar("T")

Weights = Sequence["torch.Tensor | None"]

_ids = itertools.count(1)
_active: ContextVar[int] = ContextVar("store", default=0)
_stores: weakref.WeakValueDictionary[int, PackStore] = weakref.WeakValueDictionary()


class PackStore:
    """The packed weights of one candidate, found again by a number that a trace can carry.

    Attributes:
        id: The number.
        observers: By place, what computes a value that its scale is to be found for.
    """

    def __init__(self) -> None:
        self.id = next(_ids)
        self.observers: dict[str, Callable[..., torch.Tensor]] = {}
        self._packed: dict[tuple[Any, ...], tuple[Weights, tuple[Any, ...], Any]] = {}
        self._expected: dict[tuple[int, Any], torch.Tensor | None] = {}
        _stores[self.id] = self

    def __len__(self) -> int:
        """Return how many packed forms it holds."""
        return len(self._packed)

    def get(self, kernel: str, weights: Weights, make: Callable[[], T]) -> T:
        """Return what `make` returns, made again where a weight has changed.

        Args:
            kernel: Whose form it is.
            weights: What it is made from.
            make: Packs them, without gradients.
        """
        key = (kernel, *map(id, weights))
        state = _state(weights)
        found = self._packed.get(key)
        if found is None or found[1] != state:
            with torch.no_grad():
                # The weights are kept too: an id is theirs only as long as they live.
                found = self._packed[key] = (tuple(weights), state, make())
            self._expect()
        packed: T = found[2]
        return packed

    def accept(self, moved: Sequence[torch.Tensor]) -> None:
        """Take weights that lie elsewhere now, and were not written to, for unchanged.

        Args:
            moved: The weights; whoever moved them vouches for their values.
        """
        vouched = set(map(id, moved))

        def is_same(weight: torch.Tensor | None, before: Any) -> bool:  # noqa: ANN401 - a state
            now = _state_of(weight)
            return now == before or bool(id(weight) in vouched and now and now[1] == before[1])

        for key, (weights, before, packed) in self._packed.items():
            if all(map(is_same, weights, before)):
                self._packed[key] = weights, _state(weights), packed
        self._expect()

    def _expect(self) -> None:
        self._expected = {
            (id(w), s): w
            for weights, state, _ in self._packed.values()
            for w, s in zip(weights, state, strict=True)
        }

    @contextmanager
    def active(self) -> Iterator[None]:
        """Be the store of what is dispatched inside the block."""
        token = _active.set(self.id)
        try:
            yield
        finally:
            _active.reset(token)

    @property
    def is_stale(self) -> bool:
        """Whether a weight has changed since it was packed."""
        return any(_state_of(w) != state for (_, state), w in self._expected.items())


def active_store() -> int:
    """Return the number of the store of what is being dispatched; 0: it will not run."""
    return _active.get()


def packs(store: int) -> PackStore:
    """Return the store of a number.

    Raises:
        KeyError: Its candidate was closed.
    """
    return _stores[store]


def _state(weights: Weights) -> tuple[Any, ...]:
    return tuple(map(_state_of, weights))


def _state_of(weight: torch.Tensor | None) -> tuple[int, int] | None:
    """Return what changes when a weight is written to, or given other memory."""
    if weight is None:
        return None
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version
