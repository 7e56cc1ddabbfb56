"""The fusers that a region can be given to: Inductor and nvFuser."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx as fx
from thunder.core import prims
from thunder.core.proxies import NumberProxy, Proxy, Variable, unvariableify
from thunder.core.pytree import tree_map
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, from_trace, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torch_compile import torch_compile_ex
from thunder.executors.torchex import ex as torch_ex
from thunder.extend import Executor, get_executor

from thunder_tune.compiler import dropout
from thunder_tune.compiler.compat import prepare_nvfuser
from thunder_tune.compiler.inductor import InductorRegion
from thunder_tune.compiler.inductor_options import OPTIONS
from thunder_tune.compiler.places import fusion_name
from thunder_tune.program.kinds import STRUCTURAL
from thunder_tune.values.fusers import INDUCTOR, VARIANTS


@dataclass(eq=False)
class FusionInputs:
    """What Thunder's fusers expect of a region: ordered variables and the ops."""

    inputs: Sequence[Variable]
    outputs: Sequence[Variable]
    bound_symbols: Sequence[BoundSymbol]


class Fuser(Protocol):
    """Turns the ops of one region into one bound symbol."""

    name: str

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether a region may contain the op."""

    def fuse(self, region: FusionInputs, number: int, owner: Executor) -> BoundSymbol:
        """Return the fusion; `number` is unique over the trace, `owner` the region fuser."""

    def grad_rule(self, sym: Symbol) -> Callable[..., Any] | None:
        """Return the gradient rule to use for an op of a region, or None for Thunder's own."""


def unavailable_reason(name: str, device: str) -> str:
    """Say why a fuser cannot run here, or return ""."""
    if name == "nvfuser":
        if device != "cuda" or not torch.cuda.is_available():
            return "needs a CUDA device"
        if get_executor("nvfuser") is None:
            return "nvFuser is not installed: pip install 'thunder-tune[nvfuser]'"
    if name in VARIANTS and device != "cuda":
        return "differs from inductor on CUDA only"
    return ""


def fuser(name: str) -> Fuser:
    """Return the fuser of this name, one of `FUSERS`."""
    return NvFuser() if name == "nvfuser" else InductorFuser(name)


class InductorFuser:
    """Regions as FX graphs of torch calls, compiled by Inductor without Dynamo and its guards.

    Args:
        name: Of the options to compile with.
    """

    def __init__(self, name: str = INDUCTOR) -> None:
        self.name = name

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether torch implements the op or everything it is made of."""
        return bool(torch_compile_ex.can_fuse(bsym))

    def grad_rule(self, sym: Symbol) -> Callable[..., Any] | None:
        """Take torch's rule where there is one: Inductor knows those backward ops."""
        if sym.id == dropout.DROPOUT:
            return dropout.fused_rule
        rule: Callable[..., Any] | None = torch_ex.get_grad_transform(sym)
        return rule

    def fuse(self, region: FusionInputs, number: int, owner: Executor) -> BoundSymbol:
        """Build the FX graph; compiling waits for the first call."""
        inputs = [unvariableify(v) for v in region.inputs]
        outputs = [unvariableify(v) for v in region.outputs]
        graph = as_fx(region.bound_symbols, inputs, outputs)
        compiled = InductorRegion(graph, OPTIONS[self.name])
        name = f"{fusion_name(self.name)}{number}"
        symbol = Symbol(name, meta=None, is_fusion=True, executor=owner)
        return BoundSymbol(
            symbol,
            tuple(inputs),
            {},
            tuple(outputs),
            list(region.bound_symbols),
            _call_ctx={name: compiled},
        )


class NvFuser:
    """Regions given to nvFuser through Thunder's executor."""

    name = "nvfuser"

    def __init__(self) -> None:
        prepare_nvfuser()
        executor = get_executor("nvfuser")
        if executor is None:
            raise RuntimeError("nvFuser is not installed")
        self._executor = executor

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether nvFuser implements the op or everything it is made of, on the device."""
        return bool(
            self._executor.can_fuse(bsym) and self._executor.has_cuda_input_or_output(bsym)
        )

    def grad_rule(self, sym: Symbol) -> Callable[..., Any] | None:
        """Take nvFuser's own rule; torch's only for ops that Thunder cannot decompose."""
        if sym.id == dropout.DROPOUT:
            return dropout.fused_rule
        own: Callable[..., Any] | None = self._executor.get_grad_transform(sym)
        if own is not None or not sym.tags or prims.OpTags.AUTO_REGISTERED not in sym.tags:
            return own
        rule: Callable[..., Any] | None = torch_ex.get_grad_transform(sym)
        return rule

    def fuse(self, region: FusionInputs, number: int, owner: Executor) -> BoundSymbol:
        """Build the fusion definition; nvFuser compiles at its first call."""
        fusion: BoundSymbol = self._executor.fuse(region, number)
        # Thunder flattens to prims here; tags must outlive that for the report of what ran where.
        tags = set().union(*(b.tags for b in region.bound_symbols))
        fusion.tags.update(tags)
        return fusion


def as_fx(
    bsyms: Sequence[BoundSymbol], inputs: Sequence[Proxy], outputs: Sequence[Proxy]
) -> fx.GraphModule:
    """Lower ops to torch's executor and write them as one FX graph, one node for each call.

    Args:
        bsyms: The ops.
        inputs: What the graph takes.
        outputs: What it returns, as one tuple; ops that these do not need are left out.
    """
    region = TraceCtx(None)
    region.args, region.kwargs = tuple(inputs), {}
    region.names = {p.name for p in inputs}
    for bsym in bsyms:
        _reserve_names(region, bsym)
    region.bound_symbols = list(bsyms)
    with tracectx(region):
        region.bound_symbols.append(prims.python_return.bind(tuple(outputs), output=None))
    lowered = transform_for_execution(from_trace_with(region), executors_list=(torch_ex,))

    graph = fx.Graph()
    env: dict[str, fx.Node] = {p.name: graph.placeholder(p.name) for p in inputs}

    def argument(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, Proxy) and x.name in env:
            return env[x.name]
        if isinstance(x, NumberProxy):
            return x.value
        return x

    for bsym in lowered.bound_symbols:
        if bsym.sym.id in STRUCTURAL:
            continue
        node = graph.call_function(
            _function_of(bsym),
            tuple(tree_map(argument, a) for a in bsym.args),
            {k: tree_map(argument, v) for k, v in bsym.kwargs.items()},
        )
        _bind_outputs(graph, env, bsym.output, node)
    results = lowered.bound_symbols[-1].args[0]
    graph.output(tuple(env[p.name] for p in results))
    return fx.GraphModule({}, graph)


def from_trace_with(trace: TraceCtx) -> TraceCtx:
    """Copy a trace together with its bound symbols."""
    copy = from_trace(trace)
    copy.bound_symbols = list(trace.bound_symbols)
    return copy


def _reserve_names(trace: TraceCtx, bsym: BoundSymbol) -> None:
    for proxy in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs):
        trace.names.add(proxy.name)
    for sub in bsym.subsymbols:
        _reserve_names(trace, sub)


def _bind_outputs(graph: fx.Graph, env: dict[str, fx.Node], output: Any, node: fx.Node) -> None:  # noqa: ANN401
    if isinstance(output, Proxy):
        env[output.name] = node
    elif isinstance(output, (tuple, list)):
        for i, item in enumerate(output):
            if item is not None:
                _bind_outputs(graph, env, item, graph.call_function(operator.getitem, (node, i)))


def _function_of(bsym: BoundSymbol) -> Callable[..., Any]:
    """Return the Python function that a dispatched bound symbol calls."""
    context = bsym._call_ctx or {}
    if bsym.sym.name in context:
        function: Callable[..., Any] = context[bsym.sym.name]
    elif bsym.sym.python_impl is not None:
        function = bsym.sym.python_impl
    else:
        path = bsym.sym.name.removeprefix(f"{bsym.sym.module.__name__}.")
        function = operator.attrgetter(path)(bsym.sym.module)
    if isinstance(function, functools.partial):  # FX names a call after its function
        functools.update_wrapper(function, function.func)
    return function
