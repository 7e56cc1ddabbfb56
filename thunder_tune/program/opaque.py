"""Torch calls that have no Thunder symbol: kept whole, as one op of the trace.

Their gradient is autograd's own: the backward op computes the call again and goes back through it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from thunder.core import prims
from thunder.core.devices import to_device, to_torch_device
from thunder.core.dtypes import is_inexact_dtype, to_dtype, to_torch_dtype
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.transforms import register_grad
from thunder.extend import OperatorExecutor, register_executor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from thunder_tune.program.kinds import OPAQUE_PREFIX


class _OpaqueExecutor(OperatorExecutor):
    """Runs the torch functions that Thunder has no symbol for; their symbols belong to it."""


opaque_executor = _OpaqueExecutor("thunder_tune_opaque", version=torch.__version__)
register_executor(opaque_executor)

KEPT_WHOLE = frozenset({getattr(torch, "_grouped_mm", None)})
"""Functions whose Thunder symbol cannot be used: thunder 0.2.6's check of it takes three arguments
where the call has five."""

_symbols: dict[Any, Symbol] = {}
_names: set[str] = set()


class _NoticesRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether an operator below draws random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        self.is_random = self.is_random or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _run_fake(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """Run the function on fake tensors; return its results and whether it is random."""
    with FakeTensorMode() as mode, _NoticesRandomness() as notices:

        def fake(x: Any) -> Any:  # noqa: ANN401
            if isinstance(x, TensorProxy):
                return mode.from_tensor(
                    torch.empty(
                        tuple(x.shape),
                        dtype=to_torch_dtype(x.dtype),
                        device=to_torch_device(x.device),
                    )
                )
            return x.value if isinstance(x, NumberProxy) else x

        return function(*tree_map(fake, args), **tree_map(fake, kwargs)), notices.is_random


def _fake_results(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Describe the function's results as proxies."""

    def proxy(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, torch.Tensor):
            return TensorProxy(
                shape=tuple(x.shape), dtype=to_dtype(x.dtype), device=to_device(x.device)
            )
        return x

    results, _ = _run_fake(function, args, kwargs)
    if isinstance(results, (tuple, list)):  # also torch's named tuples, which no trace can print
        return tuple(proxy(r) for r in results)
    return tree_map(proxy, results)


def is_random(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call of the function, tensors as proxies, draws random numbers."""
    return _run_fake(function, args, kwargs)[1]


def opaque_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    has_gradient: bool,
) -> Any:  # noqa: ANN401 - proxies of the results
    """Record one call of a torch function as an op that no choice can divide.

    Args:
        function: What to call.
        args: Its arguments, tensors as proxies.
        kwargs: Its keyword arguments.
        has_gradient: Whether a gradient goes through its result.

    Raises:
        NotImplementedError: A gradient is needed of a random function: computing it again in the
            backward pass would draw other numbers.
    """
    symbol = _symbols.get(function)
    if symbol is None:
        symbol = _symbols[function] = _register(function)
    if has_gradient and is_random(function, args, kwargs):
        raise NotImplementedError(
            f"{symbol.name} is random and has no Thunder symbol: no gradient"
        )
    return symbol(*args, **kwargs)


@functools.cache
def on_a_copy(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what an in-place call gives, leaving its input as it is."""

    def changed(receiver: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return method(receiver.clone(), *args, **kwargs)

    changed.__name__ = str(getattr(method, "__name__", method))
    return changed


def _register(function: Callable[..., Any]) -> Symbol:
    """Make the symbol of a function, named after it, and its gradient rule."""
    name = f"{OPAQUE_PREFIX}{getattr(function, '__name__', function)}".replace(".", "_")
    while name in _names:
        name += "_"
    _names.add(name)
    symbol: Symbol = opaque_executor.register_operator(
        name,
        meta=lambda *a, **k: _fake_results(function, a, k),
        fn=function,
        tags=[prims.OpTags.AUTO_REGISTERED],
    )
    backward: Symbol = opaque_executor.register_operator(
        f"{name}_backward",
        meta=_backward_meta,
        fn=lambda *operands: _backward(function, *operands),
        tags=[prims.OpTags.AUTO_REGISTERED],
    )

    def rule(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        result = symbol(*args, **kwargs)
        given = [r for r in _tensors(result) if is_inexact_dtype(r.dtype)]
        # Thunder does not know which intermediates need one: what is not used is dropped later.
        wanted = [x for x in _tensors((args, kwargs)) if is_inexact_dtype(x.dtype)]
        if given and wanted:
            cotangents = tuple(prims.get_grad(r) for r in given)
            names = {x.name for x in wanted}
            leaves, _ = tree_flatten((args, kwargs))
            places = tuple(
                i for i, x in enumerate(leaves) if isinstance(x, TensorProxy) and x.name in names
            )
            gradients = backward(cotangents, places, args, kwargs)
            for place, gradient in zip(places, gradients, strict=True):
                prims.put_grad(leaves[place], gradient)
        return result

    register_grad(symbol.id, rule)
    return symbol


def _tensors(values: Any) -> list[TensorProxy]:  # noqa: ANN401
    """Return each different tensor among arguments or results."""
    leaves, _ = tree_flatten(values)
    return list({x.name: x for x in leaves if isinstance(x, TensorProxy)}.values())


def _backward_meta(
    cotangents: Sequence[TensorProxy],
    places: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[TensorProxy, ...]:
    leaves, _ = tree_flatten((args, kwargs))
    return tuple(TensorProxy(like=leaves[i], requires_grad=False) for i in places)


def _backward(
    function: Callable[..., Any],
    cotangents: Sequence[torch.Tensor],
    places: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[torch.Tensor, ...]:
    """Call the function again and return the gradients of the arguments at `places`."""
    leaves, structure = tree_flatten((args, kwargs))
    with torch.enable_grad():
        for i in places:
            leaves[i] = leaves[i].detach().requires_grad_()
        args, kwargs = tree_unflatten(leaves, structure)
        flat, _ = tree_flatten(function(*args, **kwargs))
        tensors = [r for r in flat if isinstance(r, torch.Tensor)]
        results = [r for r in tensors if r.dtype.is_floating_point or r.dtype.is_complex]
        roots = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
        inputs = [leaves[i] for i in places]
        gradients = torch.autograd.grad(
            [r for r, _ in roots], inputs, [c for _, c in roots], allow_unused=True
        )
    return tuple(
        torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients, strict=True)
    )
