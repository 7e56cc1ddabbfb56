"""CUDA graphs around a whole compiled graph, with correct inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_tune.compiler.tail import Split
from thunder_tune.executors import PackStore
from thunder_tune.program.frontend import Graph

_WARM_UP_CALLS = 3


class CudaGraphed:
    """Replays one graph capture of a callable.

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
    """

    def __init__(
        self,
        run: Graph,
        static_inputs: Sequence[bool],
        packs: PackStore | None = None,
        split: Split | None = None,
    ) -> None:
        self._run = run if split is None else split.head
        self._split = split
        self._packs = packs
        self._static = tuple(static_inputs)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._buffers: list[Any] = []
        self._outputs: Any = None
        self._addresses: tuple[int, ...] = ()

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401 - the graph's inputs and outputs
        """Run the graph; the first call compiles, warms up and captures."""
        addresses = tuple(
            x.data_ptr()
            for x, static in zip(inputs, self._static, strict=True)
            if static and isinstance(x, torch.Tensor)
        )
        is_stale = self._packs is not None and self._packs.is_stale
        if self._graph is None or is_stale or addresses != self._addresses:
            self._capture(inputs)
            self._addresses = addresses
        for buffer, x, static in zip(self._buffers, inputs, self._static, strict=True):
            if not static and isinstance(x, torch.Tensor):
                buffer.copy_(x)
        assert self._graph is not None
        self._graph.replay()
        if self._split is not None:
            return self._split.finish(inputs, self._outputs, torch.clone)
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, self._outputs)

    def _capture(self, inputs: Sequence[Any]) -> None:
        self._graph = None
        self._buffers = [
            x if static or not isinstance(x, torch.Tensor) else x.clone()
            for x, static in zip(inputs, self._static, strict=True)
        ]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                self._run(*self._buffers)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._outputs = self._run(*self._buffers)
        self._graph = graph
