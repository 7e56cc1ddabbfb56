"""Attention masks, in the form that costs the attention kernels least.

A mask that no input decides (models build theirs from `arange` on every call) is computed at
capture: where it hides nothing it is dropped, where it hides the future it is `is_causal`, whose
kernels skip half of the work. Any other boolean mask becomes the bias that torch would make of it
in every layer, once for all layers and without copies of rows that are all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import thunder.torch as ltorch
import torch
import torch.fx as fx
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_tune.program.writes import name_of, written

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MAX_ELEMENTS = 2**28
_EXPANSIONS = frozenset({"expand", "expand_as", "broadcast_to"})
_CONJUNCTIONS = frozenset({"and_", "__and__", "logical_and", "bitwise_and"})


class _NotConstant(Exception):
    """The value of a node is not the same on every call."""


class _Reproducible(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators whose result their arguments do not determine, before they run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random or func.namespace != "aten" or "empty" in func.name():
            raise _NotConstant
        return func(*args, **(kwargs or {}))


def additive(left_out: TensorProxy, dtype: dtypes.dtype) -> TensorProxy:
    """Return a mask as what is added to the scores; True in a boolean mask leaves out."""
    if not dtypes.is_boolean_dtype(left_out.dtype):
        return left_out
    zeros = ltorch.zeros(*left_out.shape, device=left_out.device, dtype=dtype)
    filled: TensorProxy = ltorch.masked_fill(zeros, left_out, float("-inf"))
    return filled


class Masks:
    """The masks of one graph's calls of `scaled_dot_product_attention`.

    Args:
        graph: As Dynamo hands it to a back end, with its example values.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._position = {node: i for i, node in enumerate(graph.nodes)}
        self._changing = _ancestors([t for n in graph.nodes if (t := written(n)) is not None])
        self._values: dict[fx.Node, torch.Tensor | None] = {}
        self._forms: dict[tuple[fx.Node, int, int], str | None] = {}
        self._biases: dict[tuple[str, dtypes.dtype], TensorProxy] = {}

    def simplified(
        self,
        node: fx.Node,
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
        env: Mapping[fx.Node, Any],
        *,
        autocast: bool = False,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of an attention call with its mask in the cheapest form.

        Args:
            node: The call.
            args: Its arguments, tensors as proxies.
            kwargs: Its keyword arguments.
            env: The proxy of each node so far.
            autocast: Whether the call's type is only decided when it runs.
        """
        mask = {**dict(zip(_ARGUMENTS, node.args, strict=False)), **node.kwargs}.get("attn_mask")
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        if not isinstance(mask, fx.Node) or given.get("is_causal"):
            return args, kwargs
        query, key, proxy = given["query"], given["key"], given["attn_mask"]
        lengths = (query.shape[-2], key.shape[-2])
        form = self._form(mask, *lengths)
        if form is not None:
            given.update(attn_mask=None, is_causal=form == "causal")
        elif dtypes.is_boolean_dtype(proxy.dtype) and not autocast:
            given["attn_mask"] = self._bias(mask, proxy, query.dtype, env)
        else:
            return args, kwargs
        return tuple(given.pop(name) for name in _ARGUMENTS[:3]), given

    def _form(self, mask: fx.Node, queries: int, keys: int) -> str | None:
        """Return "all" or "causal" for a constant mask that is this, else None."""
        if (mask, queries, keys) not in self._forms:
            value, form = self._value(mask), None
            if value is not None and _hides_nothing(value):
                form = "all"
            elif value is not None and _hides_the_future(value, queries, keys):
                form = "causal"
            self._forms[mask, queries, keys] = form
            self._forget()
        return self._forms[mask, queries, keys]

    def _forget(self) -> None:
        """Free what was computed: each layer may make a mask of its own."""
        self._values = {node: None for node, value in self._values.items() if value is None}

    def _bias(
        self, mask: fx.Node, proxy: TensorProxy, dtype: dtypes.dtype, env: Mapping[fx.Node, Any]
    ) -> TensorProxy:
        source = env[self._source(mask, env)]
        self._forget()
        if source.shape[-1:] != proxy.shape[-1:]:  # kernels want a row's entries side by side
            source = proxy
        # By the proxy, not the node: a write gives a node another one.
        bias = self._biases.get((source.name, dtype))
        if bias is None:
            bias = additive(ltorch.logical_not(source), dtype)
            self._biases[source.name, dtype] = bias
        expanded: TensorProxy = ltorch.expand(bias, tuple(proxy.shape))
        return expanded

    def _source(self, mask: fx.Node, env: Mapping[fx.Node, Any]) -> fx.Node:
        """Return the smallest tensor that a mask only repeats."""
        device = env[mask].device
        while True:
            if name_of(mask) in _EXPANSIONS:
                found = mask.args[0]
            elif name_of(mask) in _CONJUNCTIONS:
                found = self._other_than_true(mask)
            elif name_of(mask) == "to":
                found = mask.args[0]
            else:
                return mask
            if not isinstance(found, fx.Node) or found in self._changing:
                return mask
            proxy = env.get(found)
            is_same = isinstance(proxy, TensorProxy) and proxy.device == device
            if not is_same or not dtypes.is_boolean_dtype(env[found].dtype):
                return mask
            mask = found

    def _other_than_true(self, node: fx.Node) -> fx.Node | None:
        """Return the operand of a conjunction whose other one is True everywhere."""
        if len(node.args) != 2 or not all(isinstance(a, fx.Node) for a in node.args):
            return None
        for one, other in (node.args, reversed(node.args)):
            assert isinstance(one, fx.Node)
            assert isinstance(other, fx.Node)
            value = self._value(one)
            if value is not None and value.dtype == torch.bool and bool(value.all()):
                return other
        return None

    def _value(self, node: fx.Node) -> torch.Tensor | None:
        """Compute a node that no input decides; None where one does."""
        unknown = (n for n in _ancestors([node]) if n not in self._values)
        for needed in sorted(unknown, key=self._position.__getitem__):
            self._values[needed] = self._computed(needed)
        return self._values[node]

    def _computed(self, node: fx.Node) -> Any:  # noqa: ANN401 - the node's result, or None
        shape = getattr(node.meta.get("example_value"), "shape", None)
        is_call = node.op in ("call_function", "call_method")
        if not is_call or shape is None or node in self._changing:
            return None
        if shape.numel() > _MAX_ELEMENTS:
            return None
        if any(self._values[argument] is None for argument in node.all_input_nodes):
            return None
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._values[n])
        try:
            with torch.no_grad(), _Reproducible():  # type: ignore[no-untyped-call]
                if isinstance(node.target, str):
                    value = getattr(args[0], node.target)(*args[1:], **kwargs)
                else:
                    value = node.target(*args, **kwargs)
        except (_NotConstant, torch.OutOfMemoryError):
            return None
        expected = node.meta["example_value"]
        is_expected = isinstance(value, torch.Tensor) and value.dtype == expected.dtype
        return value if is_expected and value.shape == expected.shape else None


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    while nodes:
        node = nodes.pop()
        if node not in found:
            found.add(node)
            nodes.extend(node.all_input_nodes)
    return found


def _hides_nothing(mask: torch.Tensor) -> bool:
    return bool(mask.all() if mask.dtype == torch.bool else (mask == 0).all())


def _hides_the_future(mask: torch.Tensor, queries: int, keys: int) -> bool:
    """Whether a mask is what `is_causal` stands for, on as many queries as keys."""
    if queries != keys or tuple(mask.shape[-2:]) != (queries, keys):
        return False
    past = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    if mask.dtype == torch.bool:
        return bool((mask == past).all())
    if not mask.dtype.is_floating_point:
        return False
    # Whatever is added to a score, the largest negative number leaves nothing of it.
    hidden = mask <= torch.finfo(mask.dtype).min
    return bool(torch.where(past, mask == 0, hidden).all())
