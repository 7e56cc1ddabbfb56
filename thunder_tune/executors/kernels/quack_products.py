"""Matrix products by QuACK's kernels (CuTe DSL): what cuBLASLt has no epilogue for.

The product of a gate and of what it lets through, one multiplied with the activation of the other,
is finished in registers: half of the product's width is written, once. A kernel is compiled for
each tile and epilogue, in a second or two, and kept on disk by QuACK; which tile is the fastest
for a product is timed at its first call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from thunder_tune.executors.kernels.choices import fastest, kept_choice

DTYPES = (torch.float16, torch.bfloat16)
GATED = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
"""Activation of the gate -> QuACK's name of the gated activation; GELU in its tanh form."""
ACTIVATIONS = {None: None, "relu": "relu", "silu": "silu", "gelu": "gelu_tanh_approx"}
"""Activation -> QuACK's name; GELU in its tanh form."""
DIVISOR = 8
"""What widths must be divisible by: rows of 16-bit values then begin at multiples of 16 bytes."""
OLDEST = (9, 0)
"""Compute capability from which on the kernels are offered; tried on none but 9.0."""

_TILES = (
    (128, 256, False),
    (256, 128, False),
    (256, 192, False),
    (128, 192, True),
    (128, 128, True),
    (128, 160, True),
)
"""Rows and columns of a tile of compute capability 9.0, and whether two tiles take turns."""


class _Problem(NamedTuple):
    """What a tile is chosen for."""

    device: int
    dtype: torch.dtype
    rows: int
    inner: int
    outer: int
    has_bias: bool
    has_residual: bool
    activation: str | None


_chosen: dict[_Problem, Any] = {}


@functools.cache
def available() -> str:
    """Say why QuACK cannot be used here, or return ""."""
    if not torch.cuda.is_available():
        return "needs a CUDA device"
    if torch.cuda.get_device_capability() < OLDEST:
        return "needs compute capability 9.0"
    missing = [name for name in ("quack", "cutlass") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install 'thunder-tune[quack]'"
    return ""


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    residual: torch.Tensor | None = None,
    activation: str | None = None,
    is_gated: bool = False,
) -> torch.Tensor:
    """Return activation(x @ weight.T + bias + residual), computed by one kernel, without gradient.

    The first call for shapes and types compiles and times a few kernels and waits for the device;
    under the capture of a CUDA graph it takes the first one instead.

    Args:
        x: (rows, in features); float16 or bfloat16, accumulated in float32.
        weight: (out features, in features), contiguous.
        bias: (out features,) or None.
        residual: (rows, out features) or None.
        activation: A key of `ACTIVATIONS`, or where it is gated of `GATED`.
        is_gated: Even columns are gates, odd ones what they let through: the result has a column
            for each pair, activation(gate) * other.

    Returns:
        (rows, out features), or half as many columns where it is gated.

    Raises:
        ValueError: Another type, or a width that is not divisible by 8.
    """
    _check(x, weight)
    columns = len(weight) // 2 if is_gated else len(weight)
    out = x.new_empty(len(x), columns)
    if not out.numel():
        return out
    name = GATED[str(activation)] if is_gated else ACTIVATIONS[activation]
    given = (_aligned(x), weight, None if bias is None else bias.contiguous())
    added = None if residual is None else _aligned(residual)
    problem = _Problem(
        x.device.index or 0,
        x.dtype,
        len(x),
        x.shape[1],
        len(weight),
        bias is not None,
        residual is not None,
        name,
    )

    def launch(configuration: Any, into: torch.Tensor = out) -> None:
        _run(*given, added, name, configuration, into)

    with torch.cuda.device(problem.device):
        launch(_configuration(problem, launch, out))
    return out


def interleaved(gate: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the rows of two weights, or the values of two biases, in turns: what `linear` takes.

    Args:
        gate: (features, ...).
        other: Of the same shape.
    """
    return torch.stack((gate, other), 1).flatten(0, 1).contiguous()


def _run(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
    configuration: Any,
    out: torch.Tensor,
) -> None:
    from quack.gemm_interface import gemm_act

    gemm_act(
        x,
        weight.t(),
        C=residual,
        bias=bias,
        activation=activation,
        postact_out=out,
        store_preact=False,
        tuned=False,
        config=configuration,
    )


def configurations(device: torch.device) -> tuple[Any, ...]:
    """Return the kernels that are timed for a product, the most promising one first.

    Args:
        device: Where it is computed.
    """
    from quack import gemm_config
    from quack.cute_dsl_utils import get_device_capacity

    capability = get_device_capacity(device)[0]
    if capability != OLDEST[0]:  # QuACK's own choice, untested
        return (gemm_config.default_config(device),)
    return tuple(
        gemm_config.GemmConfig(
            tile_m=rows,
            tile_n=columns,
            pingpong=in_turns,
            cluster_m=2,
            cluster_n=1,
            is_dynamic_persistent=False,
            device_capacity=capability,
        )
        for rows, columns, in_turns in _TILES
    )


def _configuration(
    problem: _Problem,
    launch: Callable[..., None],
    out: torch.Tensor,
) -> Any:
    """Return the kernel for a product, chosen at its first call."""
    found = _chosen.get(problem)
    if found is not None:
        return found
    choices = configurations(out.device)
    if torch.cuda.is_current_stream_capturing():
        return choices[0]
    scratch = torch.empty_like(out)

    def runs(configuration: Any) -> bool:
        """Launch a kernel, compiled where it is new; one that a shape is too small for raises."""
        try:
            launch(configuration, scratch)
        except Exception:
            return False
        return True

    index = kept_choice(
        (torch.cuda.get_device_name(problem.device), _versions(), *problem[1:]),
        [repr(c).encode() for c in choices],
        lambda: choices.index(fastest(choices, runs)),
        prepare=lambda: [runs(c) for c in choices],
    )
    return _chosen.setdefault(problem, choices[index])


@functools.cache
def _versions() -> tuple[str, ...]:
    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    return "QuACK", of("quack-kernels"), of("nvidia-cutlass-dsl")


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.dtype not in DTYPES or weight.dtype != x.dtype:
        raise ValueError(
            f"x and weight are {x.dtype} and {weight.dtype}: one of {DTYPES} for both"
        )
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"x and weight are {shapes}: (rows, in) and (out, in) are allowed")
    if not fits(x.shape[1], len(weight)):
        raise ValueError(f"weight is {tuple(weight.shape)}: multiples of {DIVISOR} are allowed")


def fits(inner: int, outer: int) -> bool:
    """Whether a product has widths that the kernels take."""
    return inner > 0 and outer > 0 and inner % DIVISOR == 0 and outer % DIVISOR == 0


def _aligned(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix whose rows are whole and begin at multiples of 16 bytes."""
    is_whole = matrix.stride(1) == 1 and matrix.stride(0) % DIVISOR == 0
    if is_whole and matrix.stride(0) >= matrix.shape[1] and matrix.data_ptr() % 16 == 0:
        return matrix
    return matrix.contiguous() if not matrix.is_contiguous() else matrix.clone()
