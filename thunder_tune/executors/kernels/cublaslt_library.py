"""The binding of cuBLASLt: numbers and signatures of what is called, and the loaded library.

Names and numbers are those of cublasLt.h, cublas_api.h and library_types.h.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch

CUBLAS_STATUS_SUCCESS = 0
CUBLAS_OP_T = 1
CUBLAS_COMPUTE_32F = 68
CUBLAS_COMPUTE_32F_FAST_TF32 = 77
CUDA_R_32F = 0
CUDA_TYPES = {
    torch.float32: CUDA_R_32F,
    torch.float16: 2,
    torch.bfloat16: 14,
    torch.float8_e4m3fn: 28,
}
"""torch's types -> cudaDataType_t: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3."""

CUBLASLT_MATMUL_DESC_TRANSA = 3  # int32_t
CUBLASLT_MATMUL_DESC_EPILOGUE = 7  # uint32_t
CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8  # const void *
CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17  # const void *, of a float32 on the device
CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18
CUBLASLT_MATMUL_DESC_D_SCALE_POINTER = 20
CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25  # int8_t
CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26  # int32_t

CUBLASLT_EPILOGUE_DEFAULT = 1
CUBLASLT_EPILOGUE_BIAS = 4
ACTIVATIONS = {None: 0, "relu": 2, "gelu": 32}
"""CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_GELU; with a bias, CUBLASLT_EPILOGUE_BIAS is added."""

CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1  # uint64_t
CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3  # uint32_t
CUBLASLT_MATMUL_PREF_MIN_ALIGNMENTS = (5, 6, 7, 8)  # _A_BYTES, B, C, D: uint32_t
CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
CUBLASLT_REDUCTION_SCHEME_MASK = 7


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t; it begins with the cublasLtMatmulAlgo_t."""

    _fields_ = (
        ("algo", c_uint64 * 8),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (c_void_p,),
    "cublasLtMatmulDescCreate": (c_void_p, c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatmulPreferenceCreate": (c_void_p,),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    "cublasLtMatmulAlgoGetHeuristic": (*(c_void_p,) * 7, c_int, c_void_p, c_void_p),
    "cublasLtMatmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library that torch has loaded, with the signatures of what is called here.

    Raises:
        OSError: It was not found.
    """
    name = f"libcublasLt.so.{(torch.version.cuda or '').split('.')[0]}"
    torch_folder = Path(torch.__file__).parent
    beside = (f"torch/lib/{name}", f"nvidia/*/lib/{name}")
    # What is loaded already is found by its bare name, wherever it lies.
    for path in (name, *(str(p) for glob in beside for p in torch_folder.parent.glob(glob))):
        try:
            found = ctypes.CDLL(path)
        except OSError:
            continue
        for function, arguments in _SIGNATURES.items():
            getattr(found, function).argtypes = arguments
            getattr(found, function).restype = c_int
        found.cublasLtGetVersion.restype = c_size_t
        found.cublasLtGetStatusName.argtypes = (c_int,)
        found.cublasLtGetStatusName.restype = ctypes.c_char_p
        return found
    raise OSError(f"{name} was not found where torch's libraries are")


def available() -> str:
    """Say why products cannot be computed here at all, or return ""."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "needs a CUDA device"
    try:
        library()
    except (OSError, AttributeError) as error:
        return f"cuBLASLt: {error}"
    return ""


def check(status: int, what: str) -> None:
    """Raise where a call did not succeed.

    Raises:
        RuntimeError: It names the call and the status.
    """
    if status != CUBLAS_STATUS_SUCCESS:
        name = library().cublasLtGetStatusName(status).decode()
        raise RuntimeError(f"{what} failed: {name}")
