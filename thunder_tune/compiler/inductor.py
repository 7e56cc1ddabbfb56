"""Regions compiled by Inductor: equal ones once, and called without the wrappers around a model.

`torch._inductor.compile` wraps what it compiles for graphs that write to their inputs or return
views of them. Regions do neither as a rule, and there may be hundreds of them: the wrappers' ten
microseconds of host time for each would be most of a small model's call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx as fx
from torch._dynamo.source import ConstantSource
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatefulSymbolicContext

from thunder_tune.compiler.inductor_options import choosing

_NO_AUTOGRAD_CACHE = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What Inductor made of a region.

    Attributes:
        run: Takes the region's inputs as one sequence.
        source: The code that Inductor generated, or "" where the region computes nothing.
    """

    run: Callable[[Sequence[Any]], Any]
    source: str


_compiled: dict[Any, Compiled] = {}
"""By structure, inputs and settings: candidates of one process share most of their regions."""


class InductorRegion:
    """A region compiled by Inductor at its first call, when strides are known.

    Args:
        graph: Calls of torch functions; a tuple of results.
        options: Inductor's configuration where it differs from the default.
    """

    def __init__(self, graph: fx.GraphModule, options: Mapping[str, Any]) -> None:
        self.graph = graph
        self._options = options
        self._compiled: Compiled | None = None

    @property
    def source(self) -> str:
        """The code that Inductor generated; "" before the first call.

        Kept with what was compiled, as equal regions are compiled once in a process.
        """
        return self._compiled.source if self._compiled is not None else ""

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401 - tensors and numbers
        """Run the region."""
        if self._compiled is None:
            key = (_structure(self.graph), *map(_description, inputs), _settings(self._options))
            if key not in _compiled:
                _compiled[key] = _compile(self.graph, inputs, self._options)
            self._compiled = _compiled[key]
        return self._compiled.run(list(inputs))


def _compile(graph: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> Compiled:
    """Return Inductor's code for a graph, bare where nothing needs a wrapper."""
    bare: list[OutputCode] = []
    sources: list[str] = []

    def keep(inner: fx.GraphModule, examples: Sequence[Any], **kwargs: Any) -> Any:  # noqa: ANN401
        code = compile_fx_inner(inner, examples, **kwargs)
        sources.append(getattr(code, "source_code", ""))
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        if metadata is not None and len(examples) == len(inputs) and _is_plain(metadata):
            bare.append(code)
        return code

    patches: Any = dict(options) or None
    # An entry of AOTAutograd's cache would bring its own wrappers, and nothing to `keep`.
    caches = functorch_config.patch(_NO_AUTOGRAD_CACHE)
    with torch.no_grad(), caches, choosing(options), _static_shapes(inputs):
        whole = cast(
            "Callable[..., Any]",  # its other types are for code made ahead of time
            compile_fx(graph, list(inputs), inner_compile=keep, config_patches=patches),
        )
    run = bare[0] if len(bare) == 1 else lambda values: whole(*values)
    return Compiled(run, "\n".join(filter(None, sources)))


def _static_shapes(inputs: Sequence[Any]) -> AbstractContextManager[Any]:
    """Compile for these very shapes, in a context that lets Inductor keep its code on disk.

    Its cache refuses graphs without an environment of symbolic shapes. A number would become a
    symbol in one, so graphs that take numbers go without.
    """
    if not all(isinstance(x, torch.Tensor) for x in inputs):
        return nullcontext()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    context = TracingContext(mode)
    for i, x in enumerate(inputs):
        context.tensor_to_context[x] = StatefulSymbolicContext(
            dynamic_sizes=[DimDynamic.STATIC] * x.dim(),
            tensor_source=ConstantSource(f"input_{i}"),
            shape_env_to_source_to_symbol_cache={},
        )
    return tracing(context)


def _is_plain(metadata: ViewAndMutationMeta) -> bool:
    """Whether a graph neither writes to an input nor returns one, or a view of one."""
    return (
        not any(i.mutates_data or i.mutates_metadata for i in metadata.input_info)
        and all(o.output_type is OutputType.non_alias for o in metadata.output_info)
        and not metadata.tokens
    )


def _structure(graph: fx.GraphModule) -> tuple[Any, ...]:
    """Describe a graph by its calls and how they are wired, without the names of values."""
    number = {node: i for i, node in enumerate(graph.graph.nodes)}

    def argument(value: Any) -> Any:  # noqa: ANN401
        return f"%{number[value]}" if isinstance(value, fx.Node) else value

    return tuple(
        (
            node.op,
            "" if node.op == "placeholder" else node.target,
            repr(fx.map_arg(node.args, argument)),
            repr(fx.map_arg(node.kwargs, argument)),
        )
        for node in graph.graph.nodes
    )


def _description(value: Any) -> Any:  # noqa: ANN401
    """Describe an input as far as the code depends on it."""
    if not isinstance(value, torch.Tensor):
        return type(value), value
    is_aligned = value.data_ptr() % 16 == 0
    return tuple(value.shape), value.stride(), value.dtype, value.device, is_aligned


def _settings(options: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        *sorted(options.items()),
    )
