"""Torch calls that have no Thunder symbol: kept whole, as one op of the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from thunder.core import prims
from thunder.core.devices import to_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_map
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor
from torch._subclasses.fake_tensor import FakeTensorMode


class _OpaqueExecutor(OperatorExecutor):
    """Runs the torch functions that Thunder has no symbol for; their symbols belong to it."""


opaque_executor = _OpaqueExecutor("thunder_tune_opaque", version=torch.__version__)
register_executor(opaque_executor)

_symbols: dict[Any, Symbol] = {}


def _fake_results(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Run the function on fake tensors and describe the results as proxies."""
    with FakeTensorMode() as mode:

        def fake(x: Any) -> Any:  # noqa: ANN401
            if isinstance(x, TensorProxy):
                with mode:
                    return torch.empty(
                        tuple(x.shape), dtype=to_torch_dtype(x.dtype), device=str(x.device)
                    )
            return x.value if isinstance(x, NumberProxy) else x

        results = function(*tree_map(fake, args), **tree_map(fake, kwargs))

    def proxy(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, torch.Tensor):
            return TensorProxy(
                shape=tuple(x.shape), dtype=to_dtype(x.dtype), device=to_device(x.device)
            )
        return x

    if isinstance(results, tuple):
        return tuple(proxy(r) for r in results)
    return tree_map(proxy, results)


def opaque_call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    """Record one call of a torch function as an op that no choice can divide.

    Raises:
        NotImplementedError: A gradient is needed; an opaque op has none.
    """
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, TensorProxy)]
    name = str(getattr(function, "__name__", function)).replace(".", "_")
    if any(t.requires_grad for t in tensors):
        raise NotImplementedError(f"{name} has no Thunder symbol, so no gradient")
    if function not in _symbols:
        _symbols[function] = opaque_executor.register_operator(
            f"opaque_{name}_{len(_symbols)}",
            meta=lambda *a, **k: _fake_results(function, a, k),
            fn=function,
            tags=[prims.OpTags.AUTO_REGISTERED],
        )
    return _symbols[function](*args, **kwargs)
