"""The second front end: Thunder's bytecode interpreter, for what Dynamo breaks on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder
import torch
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.transform_common import Transform, unwrap_return_value
from thunder.extend import get_always_executors

from thunder_tune.program.frontend import Capture, CapturedGraph, CaptureError, signature_of
from thunder_tune.program.kinds import STRUCTURAL
from thunder_tune.program.opaque import is_random
from thunder_tune.program.opened import safe_attention
from thunder_tune.program.simplify import simplified
from thunder_tune.program.structure import analyse

_STATE = frozenset({PrimIDs.UNPACK_PARAMETER, PrimIDs.UNPACK_BUFFER})


class _Recorder(Transform):
    """Keeps the computation trace as it is before any transform."""

    def __init__(self) -> None:
        self.initial: TraceCtx | None = None
        self.state: set[str] = set()  # names of parameters and buffers

    def transform_traces_pre_prologue(
        self,
        prologue_trace: TraceCtx,
        computation_trace: TraceCtx,
        epilogue_trace: TraceCtx | None,
        **kwargs: Any,  # noqa: ANN401 - Thunder passes the executors list
    ) -> tuple[TraceCtx, TraceCtx, TraceCtx | None]:
        """Record the trace and change nothing."""
        self.initial = computation_trace
        unpacked = [b for b in prologue_trace.bound_symbols if b.sym.id in _STATE]
        self.state = {p.name for b in unpacked for p in b.flat_proxy_outs}
        return prologue_trace, computation_trace, epilogue_trace


class JitFrontEnd:
    """Captures with `thunder.jit`'s tracer: slow (half a minute for a ViT), no Dynamo needed.

    The prologue that unpacks and checks the call's arguments stays Thunder's own; only the
    computation between prologue and epilogue is assigned.
    """

    name = "thunder.jit"

    def capture(
        self,
        model: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        training: bool,
    ) -> Capture:
        """Trace one call through Thunder's interpreter."""
        started = time.perf_counter()
        recorder = _Recorder()
        entry = thunder.jit(
            model,
            executors=list(get_always_executors()),
            transforms=[recorder],
            disable_torch_autograd=True,  # a bound graph brings its own backward
        )
        try:
            with torch.set_grad_enabled(training), safe_attention():
                entry(*args, **kwargs)
        except Exception as error:
            cause = error.__cause__ or error
            raise CaptureError(f"{type(cause).__name__}: {cause}".splitlines()[0][:300]) from error
        if recorder.initial is None:
            raise CaptureError("thunder.jit made no computation trace")
        cache = thunder.compile_stats(entry).interpreter_cache
        trace = recorder.initial
        if isinstance(trace.bound_symbols[-1].args[0], dict):
            trace = unwrap_return_value(trace)
        if any(_reads_a_value(b) for b in trace.bound_symbols):
            # The tracer follows the branch that this call takes and never looks again.
            raise CaptureError("it reads a tensor's value on the host (.item()): would be frozen")
        name = _random_without_gradient(trace) if training else ""
        if name:
            raise CaptureError(f"{name} is random and Thunder only wraps it: no gradient")
        trace = simplified(trace)
        graph = CapturedGraph(
            trace=trace,
            static_inputs=tuple(p.name in recorder.state for p in trace.args or ()),
            bound=cache[-1].computation_fn,
        )
        cache[-1] = cache[-1]._replace(computation_fn=graph)
        return Capture(
            program=analyse(
                [graph.trace], front_end="thunder.jit", training=training, reason="one graph"
            ),
            graphs=[graph],
            entry=entry,
            seconds=time.perf_counter() - started,
            signature=signature_of(args, kwargs),
        )


def _reads_a_value(bsym: BoundSymbol) -> bool:
    return bsym.sym.id == PrimIDs.ITEM or any(_reads_a_value(sub) for sub in bsym.subsymbols)


def _random_without_gradient(trace: TraceCtx) -> str:
    """Return the name of a random op that a gradient goes through and Thunder only wraps, or "".

    Its backward pass computes it again, with other random numbers.
    """
    tracked = {p.name for p in trace.args or () if isinstance(p, TensorProxy) and p.requires_grad}
    for bsym in trace.bound_symbols:
        if bsym.sym.id in STRUCTURAL or not tracked & {p.name for p in bsym.flat_proxy_args}:
            continue
        results = [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]
        is_detached = any(ProxyTag.DETACHED_AUTOGRAD_GRAPH in p.tags for p in results)
        if is_detached or bsym.sym.id == "torch.detach":
            continue
        if _is_random_and_wrapped(bsym):
            return str(bsym.sym.name)
        tracked |= {p.name for p in results if is_inexact_dtype(p.dtype)}
    return ""


def _is_random_and_wrapped(bsym: BoundSymbol) -> bool:
    function = getattr(bsym.sym.meta, "__torchfn", None)
    if function is not None and OpTags.AUTO_REGISTERED in (bsym.sym.tags or ()):
        return is_random(function, bsym.args, bsym.kwargs)
    return any(_is_random_and_wrapped(sub) for sub in bsym.subsymbols)
