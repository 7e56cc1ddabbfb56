"""Matrix products by cuBLASLt, called directly: every epilogue, and the fastest algorithm.

torch reaches cuBLASLt's epilogues for some products only (not bias and residual, nor ReLU after
them), and takes the first algorithm that its heuristic names. Here the first ones are timed when a
product is planned.
"""

from __future__ import annotations

import threading

import torch

from thunder_tune.executors.kernels import cublaslt_library as lt
from thunder_tune.executors.kernels.cublaslt_library import available
from thunder_tune.executors.kernels.cublaslt_plans import Addresses, Plan, Problem

__all__ = ["as_rows", "available", "has_rows", "linear", "problem_of", "run"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDEST_ALIGNMENT = 256
PLANS: dict[tuple[Problem, bool], Plan] = {}
"""What was planned so far, by problem and whether algorithms were timed."""

_planning = threading.Lock()


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    residual: torch.Tensor | None = None,
    activation: str | None = None,
    out: torch.Tensor | None = None,
    is_timed: bool = True,
) -> torch.Tensor:
    """Return activation(x @ weight.T + bias + residual), computed by one kernel, without gradient.

    The first call for shapes, strides and types times algorithms and waits for the device; under
    the capture of a CUDA graph it takes the heuristic's first algorithm instead.

    Args:
        x: (rows, in features); float32, float16 or bfloat16, accumulated in float32, and float32
            multiplied in TF32 where `torch.backends.cuda.matmul.allow_tf32` is set.
        weight: (out features, in features), contiguous.
        bias: (out features,), contiguous, or None.
        residual: (rows, out features) or None.
        activation: None, "relu" or "gelu", the latter in its tanh form.
        out: (rows, out features), takes the result; it may be the residual, else shares memory
            with no operand. None: it is made.
        is_timed: Whether to time algorithms; else the heuristic's first one is taken.

    Returns:
        (rows, out features).

    Raises:
        ValueError: Another shape, type, stride or device.
        RuntimeError: cuBLASLt refused the product.
    """
    _check_operands(x, weight, bias, residual, activation, out)
    if out is None:
        out = x.new_empty(x.shape[0], weight.shape[0])
    if not x.is_cuda:
        raise ValueError(f"x is on {x.device}: cuBLASLt takes CUDA tensors")
    if x.shape[0] == 0:
        return out
    at = Addresses(
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        out.data_ptr(),
    )
    run(problem_of(at, x, weight, residual, activation, out), at, is_timed=is_timed)
    return out


def run(problem: Problem, at: Addresses, *, is_timed: bool) -> None:
    """Enqueue a product on the current stream, planned where it is new.

    Args:
        problem: What `problem_of` said of these operands.
        at: Where they lie.
        is_timed: Whether to time algorithms; else the heuristic's first one is taken.

    Raises:
        RuntimeError: cuBLASLt refused the product.
    """
    if problem.device == torch.cuda.current_device():
        _plan(problem, at, is_timed)(at)
    else:
        with torch.cuda.device(problem.device):
            _plan(problem, at, is_timed)(at)


def problem_of(
    at: Addresses,
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None,
    activation: str | None,
    out: torch.Tensor,
) -> Problem:
    """Return the key of the plan for operands that `linear` or `float8_linear` accepts."""
    compute = lt.CUBLAS_COMPUTE_32F
    if x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        compute = lt.CUBLAS_COMPUTE_32F_FAST_TF32
    epilogue = lt.ACTIVATIONS[activation] | (lt.CUBLASLT_EPILOGUE_BIAS if at.bias else 0)
    together = at.x | at.weight | at.bias | at.residual | at.out
    return Problem(
        device=-1 if x.device.index is None else x.device.index,
        dtype=x.dtype,
        out_dtype=out.dtype,
        compute=compute,
        rows=x.shape[0],
        inner=x.shape[1],
        outer=weight.shape[0],
        x_stride=_row_stride(x),
        residual_stride=0 if residual is None else _row_stride(residual),
        out_stride=_row_stride(out),
        epilogue=epilogue or lt.CUBLASLT_EPILOGUE_DEFAULT,
        is_out_scaled=bool(at.out_scale),
        alignment=min(together & -together, _WIDEST_ALIGNMENT),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _plan(problem: Problem, at: Addresses, is_timed: bool) -> Plan:
    """Return the plan of a problem, made at its first use."""
    found = PLANS.get((problem, is_timed))
    if found is not None:
        return found
    if is_timed and torch.cuda.is_current_stream_capturing():
        return _plan(problem, at, False)
    with _planning:
        key = (problem, is_timed)
        if key not in PLANS:
            PLANS[key] = Plan(problem, at, is_timed=is_timed)
        return PLANS[key]


def _row_stride(matrix: torch.Tensor) -> int:
    """Return the elements from row to row; a single row has any stride, and none is asked for."""
    return matrix.shape[1] if matrix.shape[0] == 1 else matrix.stride(0)


def _check_operands(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
    out: torch.Tensor | None,
) -> None:
    if activation not in lt.ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}: None, 'relu' and 'gelu' are allowed")
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype}: float32, float16 and bfloat16 are allowed")
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or not weight.numel():
        shapes = f"{tuple(x.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"x and weight are {shapes}: (rows, in) and (out, in) are allowed")
    result = (x.shape[0], weight.shape[0])
    for name, operand, shape in (
        ("weight", weight, weight.shape),
        ("bias", bias, result[1:]),
        ("residual", residual, result),
        ("out", out, result),
    ):
        if operand is None:
            continue
        if operand.shape != shape or operand.dtype != x.dtype or operand.device != x.device:
            has = f"{tuple(operand.shape)} {operand.dtype} on {operand.device}"
            raise ValueError(f"{name} is {has}: it must be {tuple(shape)} {x.dtype} on {x.device}")
    for name, whole in (("weight", weight), ("bias", bias)):
        if whole is not None and not whole.is_contiguous():
            raise ValueError(f"{name} has strides {whole.stride()}: it must be contiguous")
    for name, matrix in (("x", x), ("residual", residual), ("out", out)):
        if matrix is not None and not has_rows(matrix):
            strides = f"strides {matrix.stride()}"
            raise ValueError(f"{name} has {strides}: rows must be whole, and not overlap")


def has_rows(matrix: torch.Tensor) -> bool:
    """Whether the rows of a matrix lie apart, the entries of each side by side."""
    rows, columns = matrix.shape
    is_apart = rows <= 1 or matrix.stride(0) >= columns
    return is_apart and (columns == 1 or matrix.stride(1) == 1)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows of a tensor's last dimension as a matrix, copied where it must be."""
    matrix = tensor.reshape(-1, tensor.shape[-1])
    return matrix if has_rows(matrix) else matrix.contiguous()
