"""Changes in place, replayed out of place: what a write changes besides the tensor it names.

A trace is a program without memory: a tensor that is written to becomes a new one. Whatever shares
memory with it (its base, other views) must then become new ones too, as later reads see the write.
Dynamo's example values say who shares memory.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.fx as fx
from thunder.core.proxies import TensorProxy

IN_PLACE_OPERATORS: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
    operator.setitem: ltorch.setitem,
}
"""Python's in-place operators -> what gives the new value."""

_NOT_WRITES = frozenset({"requires_grad_", "detach_"})
_RESHAPES = frozenset(
    "view reshape flatten unflatten ravel squeeze unsqueeze view_as reshape_as".split()
)
_SWAPS = frozenset({"transpose", "swapaxes", "swapdims"})


class CannotWrite(Exception):
    """A write whose effect on other views is not known; says which view."""


def name_of(node: fx.Node) -> str:
    """Return the name of what a node calls."""
    return function_name(node.target)


def function_name(target: Any) -> str:  # noqa: ANN401 - a node's target
    """Return the name of a function, method or operator."""
    if isinstance(target, torch._ops.OpOverload):  # "aten::add_", whatever its overload
        return str(target._schema.name.rsplit("::", 1)[-1])
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def written(node: fx.Node) -> fx.Node | None:
    """Return the node whose tensor a call writes to, or None."""
    if node.op not in ("call_function", "call_method"):
        return None
    out = node.kwargs.get("out")
    if isinstance(out, fx.Node):
        return out
    first = _changed_argument(node)
    return first if isinstance(first, fx.Node) else None


def writes_to_many(node: fx.Node) -> bool:
    """Whether a call writes to a list of tensors."""
    if node.op not in ("call_function", "call_method"):
        return False
    return isinstance(node.kwargs.get("out") or _changed_argument(node), (tuple, list))


def _changed_argument(node: fx.Node) -> Any:  # noqa: ANN401 - a node, or nodes
    """Return what a call writes to in place, or None."""
    name = name_of(node)
    is_named_so = name.endswith("_") and not name.endswith("__") and name not in _NOT_WRITES
    is_python = getattr(node.target, "__module__", "") == "_operator"  # and_, not_, is_
    writes = (
        node.target in IN_PLACE_OPERATORS
        or (is_named_so and not is_python)
        or has_in_place_flag(node)
    )
    return (node.args[0] if node.args else node.kwargs.get("input")) if writes else None


def has_in_place_flag(node: fx.Node) -> bool:
    """Whether a call says `inplace=True`, by name or by position."""
    if node.op != "call_function" or isinstance(node.target, str):
        return False
    if "inplace" in node.kwargs:
        return node.kwargs["inplace"] is True
    try:
        names = list(inspect.signature(node.target).parameters)
    except (TypeError, ValueError):
        return False
    if "inplace" not in names:
        return False
    position = names.index("inplace")
    return len(node.args) > position and node.args[position] is True


def has_gradient(node: fx.Node) -> bool:
    """Whether autograd differentiates a node's result."""
    leaves = torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)


class Memory:
    """Which nodes of a graph share memory.

    Args:
        graph: As Dynamo hands it to a back end, with its example values.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._storage: dict[fx.Node, int] = {}
        self._sharing: dict[int, list[fx.Node]] = {}
        for node in graph.nodes:
            storage = _storage_of(node)
            if storage is not None:
                self._storage[node] = storage
                self._sharing.setdefault(storage, []).append(node)

    def write(
        self,
        env: dict[fx.Node, Any],
        node: fx.Node,
        target: fx.Node,
        value: TensorProxy,
        run: Callable[[fx.Node], Any],
        *,
        is_tracked: bool,
    ) -> fx.Node | None:
        """Make everything that shares memory with `target` see its new value.

        Args:
            env: Values of the nodes so far; changed.
            node: The call that writes.
            target: The node that it writes to.
            value: What it holds from now on.
            run: Computes a view anew from `env`.
            is_tracked: Whether autograd sees the write: False inside `torch.no_grad`.

        Returns:
            The graph input whose memory was written to, or None.

        Raises:
            CannotWrite: A view is in between whose base cannot be written to, or autograd does not
                see a write to what it differentiates: gradients would go on as if there were none.
        """
        root, path = target, [target]
        while (parent := self._parent(root)) is not None:
            root = parent
            path.append(root)
        is_input = root.op in ("placeholder", "get_attr")
        is_hidden = not is_tracked or any(name_of(view) == "detach" for view in path)
        if is_hidden and has_gradient(root):
            raise CannotWrite("hidden from autograd")
        sharing = [n for n in self._sharing.get(self._storage.get(target, -1), []) if n in env]
        env[target] = value
        if not is_input and not any(u > node for n in sharing if n is not target for u in n.users):
            return None
        self._write_bases(env, path)
        for other in sharing:
            if other not in path or isinstance(env[other], (tuple, list)):
                base = self._parent(other)
                is_write = base is not None and written(other) is base
                env[other] = env[base] if base is not None and is_write else run(other)
        return root if is_input else None

    def _write_bases(self, env: dict[fx.Node, Any], path: list[fx.Node]) -> None:
        for i, view in enumerate(path[:-1]):
            base = path[i + 1]
            if isinstance(env[view], (tuple, list)):
                continue
            if isinstance(env[base], (tuple, list)):  # chunk, split, unbind: a part of its base
                whole = path[i + 2]
                env[whole] = _put_part(view, base, env[whole], env[view])
            else:
                env[base] = (
                    env[view] if written(view) is base else _put(view, env[base], env[view])
                )

    def _parent(self, node: fx.Node) -> fx.Node | None:
        """Return the argument that a node is a view of."""
        storage = self._storage.get(node)
        if storage is None or node.op in ("placeholder", "get_attr"):
            return None
        return next((a for a in node.all_input_nodes if self._storage.get(a) == storage), None)


def _storage_of(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _layout(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["example_value"]
    return (tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.dtype)


def _argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:  # noqa: ANN401
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _put(view: fx.Node, base: TensorProxy, new: TensorProxy) -> TensorProxy:
    """Return the base of a view after the view was written to."""
    name = name_of(view)
    base_node = view.args[0]
    assert isinstance(base_node, fx.Node)
    result: TensorProxy
    if _layout(view) == _layout(base_node):
        return new
    if base.dtype != new.dtype:
        raise CannotWrite(f"{name} to another type")
    if name in _RESHAPES:
        result = ltorch.reshape(new, tuple(base.shape))
    elif name in _SWAPS:
        result = ltorch.transpose(new, *_pair(view))
    elif name in ("t", "T", "mT", "adjoint"):
        result = ltorch.transpose(new, -2, -1) if base.ndim > 1 else new
    elif name == "permute":
        dims = view.args[1] if isinstance(view.args[1], (tuple, list)) else view.args[1:]
        order = [int(d) % base.ndim for d in dims]  # type: ignore[arg-type]
        result = ltorch.permute(new, tuple(order.index(d) for d in range(base.ndim)))
    elif name == "getitem":
        result = ltorch.setitem(base, _plain(view.args[1]), new)
    elif name in ("select", "narrow"):
        dim, start = int(_argument(view, 1, "dim")), _argument(view, 2, "start")
        start = view.kwargs.get("index", start)
        key = start if name == "select" else slice(start, start + _argument(view, 3, "length"))
        result = ltorch.setitem(base, (*[slice(None)] * (dim % base.ndim), key), new)
    else:
        raise CannotWrite(name)
    return result


def _put_part(part: fx.Node, parts: fx.Node, base: TensorProxy, new: TensorProxy) -> TensorProxy:
    """Return the base of `chunk`, `split` or `unbind` after one part was written to."""
    name = name_of(parts)
    dim = int(_argument(parts, 1 if name == "unbind" else 2, "dim", 0)) % base.ndim
    own, whole = part.meta["example_value"], parts.args[0].meta["example_value"]  # type: ignore[union-attr]
    start = (own.storage_offset() - whole.storage_offset()) // whole.stride(dim)
    key = start if name == "unbind" else slice(start, start + own.shape[dim])
    result: TensorProxy = ltorch.setitem(base, (*[slice(None)] * dim, key), new)
    return result


def _pair(view: fx.Node) -> tuple[Any, Any]:
    return (
        _argument(view, 1, "dim0", view.kwargs.get("axis0")),
        _argument(view, 2, "dim1", view.kwargs.get("axis1")),
    )


def _plain(key: Any) -> Any:  # noqa: ANN401 - an index
    """Return a basic index as plain Python; tensors in it make a copy, never a view."""
    if isinstance(key, (tuple, list)):
        return tuple(_plain(k) for k in key)
    if isinstance(key, fx.Node):
        raise CannotWrite("an index computed by the model")
    return key
