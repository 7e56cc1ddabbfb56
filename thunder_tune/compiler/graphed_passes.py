"""Training under CUDA graphs: a recording of the forward pass and one of the backward pass.

What the forward pass saves lies in its recording's memory until the next replay, so that replay
must wait for the backward pass: a second forward pass before it runs without a recording. With
`retain_graph` the backward pass can be replayed again. A recording whose parameters have moved, or
whose saved tensors are not where they were, is not used.

Gradients and large results are lent, large cotangents borrowed (`lending.py`): an optimizer that
drops the gradients before the next backward pass needs no copy of gigabytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from thunder_tune.compiler.autograd import DirectPasses, Pass
from thunder_tune.compiler.cudagraphs import StaticInputs
from thunder_tune.compiler.lending import Borrower, Lender, storage_of
from thunder_tune.compiler.recording import CudaRecorder, Recorder
from thunder_tune.compiler.tail import LARGE
from thunder_tune.executors import PackStore


class _Ticket:
    """What a forward pass leaves for its backward pass; it lives as long as that may come.

    Attributes:
        state: Of the pass.
        recorded: Whose memory the saved tensors lie in, or None.
        is_used: Whether the backward pass has run for the last time.
    """

    __slots__ = ("__weakref__", "is_used", "recorded", "state")

    def __init__(self, state: Any, recorded: _Forward | None) -> None:  # noqa: ANN401
        self.state = state
        self.recorded = recorded
        self.is_used = False


class GraphedPasses:
    """Forward and backward passes that are recorded once and replayed.

    Args:
        direct: The passes as they are; they run where a recording cannot.
        static_inputs: For each input, whether it is a parameter or buffer.
        packs: Weights that kernels of the graph keep in another form.
        writes: For each input whether the forward pass writes to it.
        recorder: Makes the recordings.
        large: Results of so many bytes are lent, and cotangents borrowed.
    """

    def __init__(
        self,
        direct: DirectPasses,
        static_inputs: Sequence[bool],
        packs: PackStore,
        writes: Sequence[bool],
        recorder: Recorder | None = None,
        large: int = LARGE,
    ) -> None:
        self._direct = direct
        self._static = tuple(static_inputs)
        self._packs = packs
        self._writes = tuple(writes)
        self._recorder = recorder or CudaRecorder()
        self._forward: _Forward | None = None
        self._last: weakref.ref[_Ticket] | None = None
        self._outputs = Lender(large)
        self._gradients = Lender()
        self._borrower = Borrower(large)

    @property
    def flows(self) -> Sequence[bool]:
        """For each output whether a gradient goes back from it."""
        return self._direct.flows

    def forward(self, inputs: Sequence[Any]) -> Pass:
        """Replay the forward pass, recorded at the first call."""
        if not self._recorder.is_free or self._awaits_backward():
            made = self._direct.forward(inputs)
            return Pass(made.outputs, made.saved, _Ticket(made.state, None))
        usable = self._forward is not None and self._forward.suits(inputs)
        if not usable or self._packs.is_stale or self._outputs.is_owed():
            self._forward = None  # its memory may be needed
            self._outputs.take((), ())
            static = StaticInputs(inputs, self._static, self._writes)
            self._forward = _Forward(self._recorder, self._direct, static, self._outputs)
        assert self._forward is not None
        made = self._forward.replay(inputs)
        ticket = _Ticket(made.state, self._forward)
        self._last = weakref.ref(ticket)
        return Pass(made.outputs, made.saved, ticket)

    def _awaits_backward(self) -> bool:
        """Whether what the last replay saved may still be needed."""
        ticket = self._last() if self._last is not None else None
        return ticket is not None and not ticket.is_used

    def backward(
        self, state: _Ticket, saved: list[torch.Tensor | None], cotangents: list[Any]
    ) -> Sequence[Any]:
        """Replay the backward pass, recorded at the first call."""
        state.is_used = not torch._C._autograd._get_current_graph_task_keep_graph()
        forward = state.recorded
        usable = forward is not None and forward is self._forward and self._recorder.is_free
        if forward is None or not usable or not forward.has_saved(saved):
            return self._direct.backward(state.state, saved, cotangents)
        return self._backward_of(forward, cotangents).replay(cotangents)

    def _backward_of(self, forward: _Forward, cotangents: Sequence[Any]) -> _Backward:
        """Return the recording of a backward pass that may be replayed now, made if need be."""
        borrowed = self._borrower.wants(cotangents)
        recorded = forward.backward
        if recorded is not None and not recorded.suits(cotangents):
            self._borrower.was_elsewhere()
            recorded, borrowed = None, [False] * len(borrowed)
        if recorded is not None and any(borrowed) and not recorded.borrows:
            recorded = None
        if recorded is None or self._gradients.is_owed():
            forward.backward = recorded = None  # its memory may be needed
            self._gradients.take((), ())
            given = StaticInputs(cotangents, borrowed)
            recorded = _Backward(self._recorder, self._direct, forward, given, self._gradients)
        forward.backward = recorded
        return recorded


class _Forward:
    """A recorded forward pass.

    Args:
        recorder: Makes the recording.
        direct: The passes.
        inputs: What is recorded reads.
        lender: Of the outputs.

    Attributes:
        made: What the pass gives, in the recording's memory.
        backward: The recording of the backward pass that reads what this one saves.
    """

    made: Pass

    def __init__(
        self, recorder: Recorder, direct: DirectPasses, inputs: StaticInputs, lender: Lender
    ) -> None:
        self._inputs = inputs
        self._lender = lender
        self._recording = recorder.record(lambda: direct.forward(inputs.values), inputs.written)
        made = self.made = self._recording.results
        places = {id(x): i for i, x in enumerate(inputs.values) if isinstance(x, torch.Tensor)}
        self._output_places = [places.get(id(x)) for x in made.outputs]
        owners = {
            storage_of(x): i
            for i, x in enumerate(inputs.values)
            if isinstance(x, torch.Tensor) and inputs.is_static(i)
        }
        self._saved_owners = [None if x is None else owners.get(storage_of(x)) for x in made.saved]
        self._saved_at = _addresses(made.saved)
        self.backward: _Backward | None = None
        own = [
            None if place is not None else x
            for x, place in zip(made.outputs, self._output_places, strict=True)
        ]
        lender.take(own, [*inputs.values, *made.saved])

    def suits(self, inputs: Sequence[Any]) -> bool:
        """Whether parameters and buffers lie where they were recorded."""
        return self._inputs.are_where(inputs)

    def has_saved(self, saved: Sequence[torch.Tensor | None]) -> bool:
        """Whether saved tensors are those of the recording."""
        return _addresses(saved) == self._saved_at

    def replay(self, inputs: Sequence[Any]) -> Pass:
        """Run the pass; results that are inputs are the call's own."""
        self._inputs.fill(inputs)
        self._recording.replay()
        self._inputs.note_writes()
        made = self.made
        outputs = [
            x if place is None else inputs[place]
            for x, place in zip(self._lender.hand_out(), self._output_places, strict=True)
        ]
        saved = [
            x if x is None or owner is None else _view_like(x, inputs[owner])
            for x, owner in zip(made.saved, self._saved_owners, strict=True)
        ]
        return Pass(outputs, saved, made.state)


class _Backward:
    """A recorded backward pass.

    Args:
        recorder: Makes the recording.
        direct: The passes.
        forward: The recorded forward pass, whose saved tensors it reads.
        cotangents: Those of a call that it is recorded with.
        lender: Of the gradients.

    Attributes:
        borrows: Whether it reads cotangents where the caller has them.
    """

    def __init__(
        self,
        recorder: Recorder,
        direct: DirectPasses,
        forward: _Forward,
        cotangents: StaticInputs,
        lender: Lender,
    ) -> None:
        self._cotangents = cotangents
        self._lender = lender
        made = forward.made
        saved = [None if x is None else x.detach() for x in made.saved]
        values = cotangents.values
        self._recording = recorder.record(
            lambda: direct.backward(made.state, list(saved), list(values))
        )
        lender.take(self._recording.results, [*saved, *values])
        self.borrows = any(map(cotangents.is_static, range(len(values))))
        cotangents.release()

    def suits(self, cotangents: Sequence[Any]) -> bool:
        """Whether the cotangents that it borrows lie where they were recorded."""
        return self._cotangents.are_where(cotangents)

    def replay(self, cotangents: Sequence[Any]) -> Sequence[Any]:
        """Run the pass and return the gradients."""
        self._cotangents.fill(cotangents)
        self._recording.replay()
        return self._lender.hand_out()


def _addresses(saved: Sequence[torch.Tensor | None]) -> list[int]:
    return [0 if x is None else x.data_ptr() for x in saved]


def _view_like(x: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """Return a parameter, or the view of it that was recorded, as this call's.

    torch notices whether a parameter is written to before the backward pass by the tensor that the
    forward pass saved; one from another call would say so after every step of an optimizer.
    """
    if owner.shape == x.shape and owner.stride() == x.stride() and owner.dtype == x.dtype:
        return owner
    if owner.dtype != x.dtype:
        return x.data
    return owner.as_strided(x.shape, x.stride(), x.storage_offset())
