"""CUDA graphs around a whole compiled graph, with correct inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_tune.compiler.recording import CudaRecorder, Recorder, Recording
from thunder_tune.compiler.tail import Split
from thunder_tune.executors import PackStore
from thunder_tune.program.frontend import Graph


class StaticInputs:
    """The inputs of a recording: parameters where they lie, of the others copies.

    Args:
        inputs: Of the call that is recorded.
        static: For each input whether it is a parameter or buffer.
        writes: For each input whether the program writes to it.

    Attributes:
        values: What the recorded work reads.
        written: Those of them that it writes to.
    """

    def __init__(
        self, inputs: Sequence[Any], static: Sequence[bool], writes: Sequence[bool] = ()
    ) -> None:
        self._static = static
        self._addresses = self._of(inputs)
        self.values = [
            x if fixed or not isinstance(x, torch.Tensor) else x.detach().clone()
            for x, fixed in zip(inputs, static, strict=True)
        ]
        self.written = [
            x for x, is_written in zip(self.values, writes, strict=False) if is_written
        ]

    def _of(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            x.data_ptr()
            for x, fixed in zip(inputs, self._static, strict=True)
            if fixed and isinstance(x, torch.Tensor)
        )

    def are_where(self, inputs: Sequence[Any]) -> bool:
        """Whether the parameters and buffers of another call lie where these do."""
        return self._of(inputs) == self._addresses

    def is_static(self, place: int) -> bool:
        """Whether an input is a parameter or buffer."""
        return self._static[place]

    def release(self) -> None:
        """Hold what is read where it lies no longer: whoever it belongs to may let it go."""
        self.values = [
            None if fixed else x for x, fixed in zip(self.values, self._static, strict=True)
        ]

    def fill(self, inputs: Sequence[Any]) -> None:
        """Copy the other inputs of a call to where the recording reads them."""
        for value, x, fixed in zip(self.values, inputs, self._static, strict=True):
            if not fixed and isinstance(x, torch.Tensor):
                value.copy_(x)

    def note_writes(self) -> None:
        """Count a replay's writes as torch counts its own."""
        torch.autograd.graph.increment_version(self.written)


class CudaGraphed:
    """Replays one graph capture of a callable without gradients.

    Inputs that are not parameters or buffers are copied into the capture's own memory before each
    replay; parameters are read where they lie, and the graph is captured anew when one has moved,
    or was written to after a kernel had packed it.
    Outputs are clones: the capture's own output memory is overwritten by the next replay.

    Args:
        run: Compiled graph; must not synchronise with the host.
        static_inputs: For each input, whether it is a parameter or buffer.
        packs: Weights that kernels of the graph keep in another form.
        split: The same graph in two parts, of which the first is captured and the second runs
            behind it; None: all of it is captured.
        writes: For each input whether the graph writes to it.
        recorder: Captures.
    """

    def __init__(
        self,
        run: Graph,
        static_inputs: Sequence[bool],
        packs: PackStore | None = None,
        split: Split | None = None,
        writes: Sequence[bool] = (),
        recorder: Recorder | None = None,
    ) -> None:
        self._run = run if split is None else split.head
        self._split = split
        self._packs = packs
        self._static = tuple(static_inputs)
        self._writes = tuple(writes)
        self._recorder = recorder or CudaRecorder()
        self._inputs: StaticInputs | None = None
        self._recording: Recording | None = None

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401 - the graph's inputs and outputs
        """Run the graph; the first call compiles, warms up and captures."""
        is_stale = self._packs is not None and self._packs.is_stale
        if self._inputs is None or is_stale or not self._inputs.are_where(inputs):
            self._record(inputs)
        assert self._inputs is not None
        assert self._recording is not None
        self._inputs.fill(inputs)
        self._recording.replay()
        self._inputs.note_writes()
        results = self._recording.results
        if self._split is not None:
            return self._split.finish(inputs, results, torch.clone)
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, results)

    def _record(self, inputs: Sequence[Any]) -> None:
        self._recording = None  # its memory may be needed
        self._inputs = StaticInputs(inputs, self._static, self._writes)
        values, written = self._inputs.values, self._inputs.written
        self._recording = self._recorder.record(lambda: self._run(*values), written)
