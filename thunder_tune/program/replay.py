"""Replay of Dynamo's graph on Thunder's symbols: a Thunder trace without a bytecode interpreter.

Dynamo's graph is straight-line code whose targets are torch functions and tensor methods. Each is
called as the Thunder symbol that stands for it, under an open trace, so that the trace records it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder
import torch
import torch.fx as fx
from thunder.core.langctxs import Languages, langctx
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx
from thunder.torch import _torch_to_thunder_function_map

from thunder_tune.program.opaque import opaque_call
from thunder_tune.program.opened import OPENED

_PLAIN_MODULES = frozenset({"_operator", "builtins", "math", "itertools"})
_VIEW_METHODS = frozenset(
    "view reshape permute transpose t expand expand_as unsqueeze squeeze flatten unflatten chunk "
    "split narrow select unbind view_as reshape_as mT T".split()
)
_OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
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

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.current: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401
        self.current = n
        in_place = self._in_place_target(n)
        result = super().run_node(n)
        if in_place is not None:
            # Later users of the old node must see the new value, as they would in eager mode.
            self.env[in_place] = result
        return result

    def _in_place_target(self, n: fx.Node) -> fx.Node | None:
        """Return the node that `n` overwrites, if it is replayed out of place."""
        if not n.args or not isinstance(n.args[0], fx.Node):
            return None
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        writes = (
            n.kwargs.get("inplace") is True
            or n.target in _OUT_OF_PLACE
            or (name.endswith("_") and not name.endswith("__"))
            or (n.target is torch.nn.functional.dropout and len(n.args) > 3 and n.args[3] is True)
        )
        if not writes or not isinstance(self.env.get(n.args[0]), TensorProxy):
            return None
        target = n.args[0]
        if target.op == "placeholder":
            raise Unsupported(f"in-place change of an input by {name} at {source_line(n)}")
        for alias in _aliases(target):
            if any(user > n for user in alias.users):
                raise Unsupported(f"in-place change of a view by {name} at {source_line(n)}")
        return target

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        args, kwargs = _native(args), _native(kwargs)
        if "_log_api_usage_once" in str(target):
            return None
        if target in _OUT_OF_PLACE and isinstance(args[0], TensorProxy):
            target = _OUT_OF_PLACE[target]
        if kwargs.get("inplace") is True:
            kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
        if target is torch.nn.functional.dropout and len(args) > 3:
            args = args[:3]
        function = OPENED.get(target) or _torch_to_thunder_function_map.get(target)
        if function is None:
            if getattr(target, "__module__", "") in _PLAIN_MODULES:
                function = target
            else:
                return opaque_call(target, args, kwargs)
        return function(*args, **kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        args, kwargs = _native(args), _native(kwargs)
        name = target
        if target.endswith("_") and not target.endswith("__"):
            name = target[:-1]
        receiver, *rest = args
        if name == "requires_grad" or (name == "detach" and not receiver.requires_grad):
            return receiver
        try:
            method = getattr(receiver, name)
        except AttributeError:
            return opaque_call(getattr(torch.Tensor, target), args, kwargs)
        return method(*rest, **kwargs)


def _aliases(node: fx.Node) -> set[fx.Node]:
    """Return the other nodes that may share memory with a node through views."""
    base = node
    while _is_view(base) and base.args and isinstance(base.args[0], fx.Node):
        base = base.args[0]
    found, todo = {base}, [base]
    while todo:
        for user in todo.pop().users:
            if _is_view(user) and user not in found:
                found.add(user)
                todo.append(user)
    return found - {node}


def _is_view(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _VIEW_METHODS
    return node.op == "call_function" and (
        node.target in (operator.getitem, torch.chunk, torch.split, torch.permute, torch.transpose)
        or getattr(node.target, "__name__", "") in _VIEW_METHODS
    )


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
    replay = _Replay(graph)

    def program(*values: Any) -> Any:  # noqa: ANN401
        with langctx(Languages.TORCH):
            return _native(replay.run(*values))

    tracer: Callable[..., TraceCtx] = thunder.trace()
    try:
        return tracer(program, *inputs)
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
