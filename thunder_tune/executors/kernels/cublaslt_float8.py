"""Products of e4m3 matrices by cuBLASLt: one scale each, and a result that may be e4m3 too.

What torch offers of it has neither an activation in the epilogue nor a result in e4m3 that is
scaled and saturated there, so that the next product could take it as it is. cuBLASLt wants
x (rows, in) and the weight (out, in) as they lie (its "TN" form), widths and strides that are
multiples of 16, and bias and residual in bfloat16.
"""

from __future__ import annotations

import torch

from thunder_tune.executors.kernels import cublaslt
from thunder_tune.executors.kernels import cublaslt_library as lt
from thunder_tune.executors.kernels.cublaslt_plans import Addresses

E4M3 = torch.float8_e4m3fn
MULTIPLE = 16
"""Of widths, strides and addresses."""
_RESULTS = (torch.bfloat16, E4M3)


def float8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    residual: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out_multiplier: torch.Tensor | None = None,
    is_timed: bool = True,
) -> torch.Tensor:
    """Return activation(x_scale * weight_scale * x @ weight.T + bias + residual), by one kernel.

    An e4m3 result is multiplied by `out_multiplier` first and saturated at 448. Sums are as
    precise as tensor cores keep them by themselves ("fast accumulation").

    Args:
        x: (rows, in features), e4m3.
        weight: (out features, in features), e4m3, contiguous.
        bias: (out features,), bfloat16, contiguous, or None.
        x_scale: (), float32, on the device.
        weight_scale: (), float32, on the device.
        residual: (rows, out features), bfloat16, or None; not with an e4m3 result.
        activation: None, "relu" or "gelu", the latter in its tanh form.
        out_dtype: bfloat16 or e4m3.
        out_multiplier: (), float32, on the device, or None: 1; for an e4m3 result only.
        is_timed: Whether to time algorithms; else the heuristic's first one is taken.

    Returns:
        (rows, out features).

    Raises:
        ValueError: Another shape, type, stride or device.
        RuntimeError: cuBLASLt refused the product.
    """
    scales = {"x_scale": x_scale, "weight_scale": weight_scale, "out_multiplier": out_multiplier}
    _check_types(x, weight, bias, residual, activation, out_dtype, scales)
    _check_places(x, weight, bias, residual)
    if not x.is_cuda:
        raise ValueError(f"x is on {x.device}: cuBLASLt takes CUDA tensors")
    out = x.new_empty(x.shape[0], weight.shape[0], dtype=out_dtype)
    if x.shape[0] == 0:
        return out
    at = Addresses(
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        out.data_ptr(),
        x_scale.data_ptr(),
        weight_scale.data_ptr(),
        0 if out_multiplier is None else out_multiplier.data_ptr(),
    )
    problem = cublaslt.problem_of(at, x, weight, residual, activation, out)
    cublaslt.run(problem, at, is_timed=is_timed)
    return out


def _check_types(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype,
    scales: dict[str, torch.Tensor | None],
) -> None:
    if activation not in lt.ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}: None, 'relu' and 'gelu' are allowed")
    if out_dtype not in _RESULTS:
        raise ValueError(f"out_dtype is {out_dtype}: bfloat16 and float8_e4m3fn are allowed")
    if out_dtype == E4M3 and residual is not None:
        raise ValueError("a residual is given for an e4m3 result: only bfloat16 ones take it")
    if out_dtype != E4M3 and scales["out_multiplier"] is not None:
        raise ValueError("out_multiplier is given for a bfloat16 result: only e4m3 ones take it")
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or not weight.numel():
        shapes = f"{tuple(x.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"x and weight are {shapes}: (rows, in) and (out, in) are allowed")
    result = (x.shape[0], weight.shape[0])
    given = [("x", x, E4M3, x.shape), ("weight", weight, E4M3, weight.shape)]
    given += [
        (name, tensor, torch.bfloat16, torch.Size(shape))
        for name, tensor, shape in (("bias", bias, result[1:]), ("residual", residual, result))
        if tensor is not None
    ]
    given += [(n, t, torch.float32, torch.Size(())) for n, t in scales.items() if t is not None]
    for name, tensor, dtype, shape in given:
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != x.device:
            has = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name} is {has}: it must be {tuple(shape)} {dtype} on {x.device}")


def _check_places(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    for name, whole in (("weight", weight), ("bias", bias)):
        if whole is not None and not whole.is_contiguous():
            raise ValueError(f"{name} has strides {whole.stride()}: it must be contiguous")
    for name, matrix in (("x", x), ("residual", residual)):
        if matrix is not None and not cublaslt.has_rows(matrix):
            strides = f"strides {matrix.stride()}"
            raise ValueError(f"{name} has {strides}: rows must be whole, and not overlap")
    if any(size % MULTIPLE for size in weight.shape):
        raise ValueError(f"weight is {tuple(weight.shape)}: multiples of {MULTIPLE} are allowed")
    for name, matrix in (("x", x), ("weight", weight), ("residual", residual)):
        if matrix is None:
            continue
        step = matrix.stride(0) if matrix.shape[0] > 1 else 0
        if step % MULTIPLE or matrix.data_ptr() % MULTIPLE:
            at = f"rows {step} elements apart, the first at {matrix.data_ptr()}"
            raise ValueError(f"{name} has {at}: multiples of {MULTIPLE} are allowed")
