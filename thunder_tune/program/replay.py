"""Replay of Dynamo's graph on Thunder's symbols: a Thunder trace without a bytecode interpreter.

Dynamo's graph is straight-line code whose targets are torch functions and tensor methods. Each is
called as the Thunder symbol that stands for it, under an open trace, so that the trace records it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import thunder
import thunder.torch as ltorch
import torch
import torch.fx as fx
import torch.nn.functional as F
from thunder.common import CompileData, CompileStats
from thunder.core import dtypes, prims
from thunder.core.compile_data import compile_data_and_stats
from thunder.core.langctxs import Languages, langctx
from thunder.core.proxies import ProxyTag, TensorProxy
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.torch import _torch_to_thunder_function_map
from torch.fx.operator_schemas import get_signature_for_torch_op
from torch.utils._pytree import tree_leaves

from thunder_tune.program.masks import Masks
from thunder_tune.program.opaque import KEPT_WHOLE, is_random, on_a_copy, opaque_call
from thunder_tune.program.opened import OPENED, safe_attention
from thunder_tune.program.writes import (
    IN_PLACE_OPERATORS,
    CannotWrite,
    Memory,
    function_name,
    has_gradient,
    has_in_place_flag,
    name_of,
    writes_to_many,
    written,
)

_PLAIN_MODULES = frozenset({"_operator", "builtins", "math", "itertools"})
_AUTOCAST = {
    torch.amp.autocast_mode._enter_autocast: ltorch.autocast_enter,
    torch.amp.autocast_mode._exit_autocast: ltorch.autocast_exit,
}


class Unsupported(Exception):
    """A construct that cannot be replayed; the message names it and its source line."""


def _native(value: Any) -> Any:  # noqa: ANN401 - any argument of a torch call
    """Turn FX's immutable containers into plain ones, which Thunder's checks expect."""
    if isinstance(value, tuple):
        items = [_native(i) for i in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_native(i) for i in value]
    if isinstance(value, Mapping):
        return {k: _native(v) for k, v in value.items()}
    return value


def source_line(node: fx.Node) -> str:
    """Return "file:line" of the user's code that a node comes from, or ""."""
    trace = node.stack_trace or ""
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not frames:
        return ""
    parts = frames[-1].split(",")
    return f"{parts[0][5:].strip().strip(chr(34))}:{parts[1].replace('line', '').strip()}"


class _Replay(fx.Interpreter):
    """Calls every node of a graph as Thunder's symbol."""

    def __init__(self, graph: fx.GraphModule, data: CompileData) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.current: fx.Node | None = None
        self._inputs: dict[fx.Node, TensorProxy] = {}
        self._data = data
        self._memory = Memory(graph.graph)
        self._masks = Masks(graph.graph)
        self._changed: dict[fx.Node, TensorProxy] = {}

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401
        self.current = n
        if writes_to_many(n):
            raise Unsupported(
                f"in-place change of several tensors by {name_of(n)} at {source_line(n)}"
            )
        target = written(n)
        before = self.env.get(target) if target is not None else None
        result = super().run_node(n)
        if target is not None and isinstance(before, TensorProxy):
            result = ltorch.to(result, before.dtype) if result.dtype != before.dtype else result
            try:
                changed = self._memory.write(
                    self.env,
                    n,
                    target,
                    result,
                    super().run_node,
                    is_tracked=self._data.is_grad_enabled,
                )
            except CannotWrite as error:
                raise Unsupported(
                    f"in-place change of a view ({error}) by {name_of(n)} at {source_line(n)}"
                ) from error
            if changed is not None:
                self._changed.setdefault(changed, self._inputs[changed])
        return result

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        value = super().placeholder(target, args, kwargs)
        assert self.current is not None
        self._inputs[self.current] = value
        return value

    def write_inputs(self) -> None:
        """Write the inputs that the graph changes, once it needs their old values no more."""
        for node, original in self._changed.items():
            prims.copy_(detached(self.env[node]), original, grad_enabled=False)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        assert self.current is not None
        args, kwargs = _native(args), _native(kwargs)
        if "_log_api_usage_once" in str(target):
            return None
        if target is torch._C._set_grad_enabled:
            self._data.is_grad_enabled = bool(args[0])
            return None
        if target in _AUTOCAST:
            _AUTOCAST[target].meta(*args, **kwargs)
            return None
        if target in IN_PLACE_OPERATORS and isinstance(args[0], TensorProxy):
            return IN_PLACE_OPERATORS[target](*args, **kwargs)
        kwargs.pop("out", None)
        if has_in_place_flag(self.current) or "inplace" in kwargs:
            args, kwargs = _without_flag(target, args, kwargs)
        elif written(self.current) is not None and function_name(target).endswith("_"):
            target = _out_of_place(target)
        if target is F.scaled_dot_product_attention:
            autocast = not self._data.autocast_stack.is_empty()
            args, kwargs = self._masks.simplified(
                self.current, args, kwargs, self.env, autocast=autocast
            )
        function = OPENED.get(target) or _torch_to_thunder_function_map.get(target)
        is_plain = function is None and getattr(target, "__module__", "") in _PLAIN_MODULES
        picks = target is operator.getitem and not isinstance(args[0], TensorProxy)
        if is_plain and (picks or not self._is_complex(args, kwargs)):
            return target(*args, **kwargs)
        if function is None or self._is_whole(target, function, args, kwargs):
            return opaque_call(target, args, kwargs, has_gradient=has_gradient(self.current))
        args, kwargs = _by_position(function, target, args, kwargs)
        kwargs = _with_settings(function, self.current, args, kwargs)
        return self._or_opaque(function, target, args, kwargs)

    def _or_opaque(self, function: Any, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Call a Thunder symbol; what it lacks (an option, a dtype) is torch's own, opaque."""
        assert self.current is not None
        scopes = get_tracectx().scopes
        depth, recorded = len(scopes), len(scopes[-1])
        try:
            return function(*args, **kwargs)
        except NotImplementedError:
            del scopes[depth:]
            del scopes[-1][recorded:]
            return opaque_call(target, args, kwargs, has_gradient=has_gradient(self.current))

    def _is_whole(self, target: Any, function: Any, args: Any, kwargs: Any) -> bool:  # noqa: ANN401
        """Whether a call stays opaque although Thunder knows its function.

        Where Thunder only wraps torch's function, its gradient computes the call again: of a
        random one with other numbers.
        """
        assert self.current is not None
        is_wrapped = prims.OpTags.AUTO_REGISTERED in (getattr(function, "tags", None) or ())
        return (
            target in KEPT_WHOLE
            or self._is_complex(args, kwargs)
            or (is_wrapped and has_gradient(self.current) and is_random(target, args, kwargs))
        )

    def _is_complex(self, args: Any, kwargs: Any) -> bool:  # noqa: ANN401
        """Whether a gradient of complex numbers is asked for: Thunder's rules do not conjugate."""
        assert self.current is not None
        made = tree_leaves(self.current.meta.get("example_value"))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, TensorProxy)]
        return has_gradient(self.current) and (
            any(dtypes.is_complex_dtype(x.dtype) for x in given)
            or any(isinstance(x, torch.Tensor) and x.is_complex() for x in made)
        )

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        args, kwargs = _native(args), _native(kwargs)
        receiver, *rest = args
        if target == "requires_grad_":
            return receiver
        if target in ("detach", "detach_"):
            return detached(receiver)
        name = target
        if target.endswith("_") and not target.endswith("__"):
            name = target[:-1]
            if name in _METHODS:
                return _METHODS[name](*args, **kwargs)
        try:
            method = None if self._is_complex(args, kwargs) else getattr(receiver, name)
        except AttributeError:
            method = None
        if method is None:
            function = getattr(torch.Tensor, name, None) or on_a_copy(
                getattr(torch.Tensor, target)
            )
            assert self.current is not None
            return opaque_call(function, args, kwargs, has_gradient=has_gradient(self.current))
        function = getattr(torch.Tensor, name, None)
        if function is None:
            return method(*rest, **kwargs)
        return self._or_opaque(lambda _, *a, **k: method(*a, **k), function, args, kwargs)


def _without_flag(target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ANN401
    bound = inspect.signature(target).bind(*args, **kwargs)
    bound.arguments.pop("inplace", None)
    return bound.args, bound.kwargs


def _by_position(function: Any, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Give by position what torch names otherwise than Thunder: "weight" is "w" there."""
    known = inspect.signature(getattr(function, "meta", None) or function).parameters
    if all(name in known for name in kwargs):
        return args, kwargs
    own = [inspect.signature(target)] if inspect.isfunction(target) else None
    for signature in own or get_signature_for_torch_op(target) or ():
        with suppress(TypeError):
            bound = signature.bind(*args, **kwargs)
            return bound.args, bound.kwargs
    return args, kwargs


def _with_settings(function: Any, node: fx.Node, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Name type and device that `torch.full` and its like took from torch's settings."""
    made = node.meta.get("example_value")
    if not isinstance(made, torch.Tensor) or node.all_input_nodes:
        return kwargs
    parameters = inspect.signature(getattr(function, "meta", None) or function).parameters
    open_ = [name for name in list(parameters)[len(args) :] if kwargs.get(name) is None]
    settings = {"dtype": made.dtype, "device": made.device}
    return {**kwargs, **{name: value for name, value in settings.items() if name in open_}}


def _out_of_place(target: Any) -> Any:  # noqa: ANN401 - a torch function
    """Return torch's function of the same name without the underscore."""
    for module in (torch, torch.nn.functional):
        found = getattr(module, function_name(target)[:-1], None)
        if found is not None:
            return found
    return on_a_copy(target)


def detached(value: TensorProxy) -> TensorProxy:
    """Return a tensor that no gradient goes through."""
    result: TensorProxy = prims.shallow_copy(value)
    result.tags.add(ProxyTag.DETACHED_AUTOGRAD_GRAPH)
    return result


def _copied(receiver: TensorProxy, source: TensorProxy, non_blocking: bool = False) -> TensorProxy:
    result: TensorProxy = ltorch.expand(ltorch.to(source, receiver.dtype), tuple(receiver.shape))
    return result


_METHODS: dict[str, Callable[..., TensorProxy]] = {
    "zero": ltorch.zeros_like,
    "fill": ltorch.full_like,
    "copy": _copied,
}
"""In-place methods without underscore -> their new value, where no method gives it."""


def trace_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> TraceCtx:
    """Replay a Dynamo graph under a new Thunder trace.

    Args:
        graph: As Dynamo hands it to a back end.
        inputs: Its example inputs; only their metadata is used.

    Returns:
        The initial trace: one top-level bound symbol for each op.

    Raises:
        Unsupported: A construct has no faithful replay; the message names it, file and line.
    """
    data = CompileData(fn=graph, executors_list=[], disable_preprocessing=True)
    for device in ("cpu", "cuda"):  # autocast around the call
        if torch.is_autocast_enabled(device):
            data.autocast_stack.push(device, torch.get_autocast_dtype(device), True)
    replay = _Replay(graph, data)

    def program(*values: Any) -> Any:  # noqa: ANN401
        with langctx(Languages.TORCH), compile_data_and_stats(data, CompileStats()):
            default_dtype_and_device = thunder._get_cache_info()  # what torch.randn asks for
            default_dtype_and_device["default_dtype"] = torch.get_default_dtype()
            default_dtype_and_device["default_device"] = torch.get_default_device()
            result = _native(replay.run(*values))
            replay.write_inputs()
            return result

    tracer: Callable[..., TraceCtx] = thunder.trace()
    try:
        with safe_attention():
            return thunder._with_cache_info_ctx(tracer)(program, *inputs)
    except Unsupported:
        raise
    except Exception as error:
        node = replay.current
        where = source_line(node) if node is not None else ""
        what = node.target if node is not None else "the graph"
        what = getattr(what, "__name__", what)
        raise Unsupported(
            f"{what} at {where or 'an unknown line'}: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}"[:300]
        ) from error
