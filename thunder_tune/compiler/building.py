"""Build a candidate: a callable model from a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_tune.compiler.autograd import differentiable
from thunder_tune.compiler.backends import ChannelsLast, whole_program
from thunder_tune.compiler.cudagraphs import CudaGraphed
from thunder_tune.compiler.dispatch import CompiledGraph, applied_share, compile_graph
from thunder_tune.compiler.graphed_passes import GraphedPasses
from thunder_tune.compiler.releasing import releasable_bytes
from thunder_tune.executors import PackStore
from thunder_tune.program.frontend import Capture, Graph
from thunder_tune.values.plan import Plan


class Built:
    """A candidate, callable like the model; compiling happens at the first call.

    Several may be built from one capture; each call binds its own graphs first.

    Attributes:
        graphs: The dispatched graphs of a composed candidate, for inspection.
    """

    def __init__(
        self,
        plan: Plan,
        entry: Callable[..., Any],
        capture: Capture | None = None,
        graphs: Sequence[CompiledGraph] = (),
        bound: Sequence[Graph] = (),
    ) -> None:
        self._plan = plan
        self._entry = entry
        self._capture = capture
        self.graphs = tuple(graphs)
        self._bound = tuple(bound)
        self._ran_whole: bool | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        """Run the candidate."""
        if self._capture is None:
            return self._entry(*args, **kwargs)
        self._capture.bind(self._bound)
        if self._ran_whole is not None:
            return self._entry(*args, **kwargs)
        before = [graph.calls for graph in self._capture.graphs]
        result = self._entry(*args, **kwargs)
        self._ran_whole = all(
            graph.calls > count for graph, count in zip(self._capture.graphs, before, strict=True)
        )
        return result

    @property
    def applied(self) -> float:
        """Share of ops that run where the plan says, 0 to 1; after the first call."""
        if self._capture is None:
            return float(self._plan.program == "eager" or _was_compiled(self._entry))
        if not self._ran_whole:
            return 0.0  # not called yet, or Dynamo did not lead the call to our graphs
        places = {i: where for g in self.graphs for i, where in g.places.items()}
        return applied_share(self._capture.program, self._plan, places)

    @property
    def releasable_bytes(self) -> int:
        """Bytes of parameters that are read in packed form only, where there is one graph."""
        if self._capture is None or len(self.graphs) != 1:
            return 0
        return releasable_bytes(self.graphs[0], self._capture.graphs[0].static_inputs)

    def close(self) -> None:
        """Drop the compiled graphs so that their memory can be freed."""
        for graph in self._capture.graphs if self._capture else ():
            if graph.bound in self._bound:
                graph.bound = None
        self.graphs = self._bound = ()
        self._capture = None
        self._entry = _closed


def _closed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    raise RuntimeError("this candidate was closed")


def _was_compiled(entry: Callable[..., Any]) -> bool:
    """Whether Dynamo compiled a frame: one that gave up on all runs eagerly and says nothing."""
    if isinstance(entry, ChannelsLast):
        entry = entry.inner
    if not isinstance(entry, torch._dynamo.eval_frame.OptimizedModule):
        return True
    code = type(entry._orig_mod).forward.__code__
    found = torch._dynamo.eval_frame._debug_get_cache_entry_list(code)
    return bool(found) or bool(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def build(model: Callable[..., Any], plan: Plan, capture: Capture | None) -> Built:
    """Build a candidate of a model.

    Args:
        model: The model itself; a whole-program back end compiles it.
        plan: What to build.
        capture: Of this model; a composed plan needs it.

    Raises:
        ValueError: A composed plan without a capture, or an unknown back end.
    """
    if not plan.is_composed:
        return Built(plan, whole_program(model, plan.program))
    if capture is None or not capture.program.is_captured:
        raise ValueError("a composed plan needs a captured program")
    graphs = []
    first = 0
    for number, graph in enumerate(capture.graphs):
        count = sum(op.graph == number for op in capture.program.ops)
        graphs.append(
            compile_graph(
                graph, plan, range(first, first + count), training=capture.program.training
            )
        )
        first += count
    bound = [
        runnable(compiled, plan, graph.static_inputs)
        for compiled, graph in zip(graphs, capture.graphs, strict=True)
    ]
    return Built(plan, capture.entry, capture, graphs, bound)


def runnable(compiled: CompiledGraph, plan: Plan, static_inputs: Sequence[bool]) -> Graph:
    """Wrap a dispatched graph in what the plan asks for around it: CUDA graphs, TF32."""
    run = compiled.run
    if plan.cuda_graphs == "whole" and compiled.passes is not None:
        run = differentiable(
            GraphedPasses(compiled.passes, static_inputs, compiled.packs, compiled.writes)
        )
    elif plan.cuda_graphs == "whole":
        run = CudaGraphed(run, static_inputs, compiled.packs, compiled.split, compiled.writes)
    else:
        run = _with_packs(run, compiled.packs)
    if plan.float32_matmul == "tf32":
        run = _in_tf32(run)
    return run


def _with_packs(run: Graph, packs: PackStore) -> Graph:
    """Keep packed weights for as long as the graph that finds them by number."""

    def wrapped(*inputs: Any, packs: PackStore = packs) -> Any:  # noqa: ANN401
        return run(*inputs)

    return wrapped


def _in_tf32(run: Graph) -> Graph:
    def wrapped(*inputs: Any) -> Any:  # noqa: ANN401
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return run(*inputs)
        finally:
            torch.set_float32_matmul_precision(before)

    return wrapped
