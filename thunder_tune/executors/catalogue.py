"""The operator executors by name, for which kinds of op, and what a missing one would need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from thunder.core.symbol import BoundSymbol
from thunder.extend import Executor, get_executor

from thunder_tune.executors.cublaslt import cublaslt_executor
from thunder_tune.executors.flash_attention_4 import available as flash_4_available
from thunder_tune.executors.flash_attention_4 import flash_4_executor
from thunder_tune.executors.float8 import float8_executor
from thunder_tune.executors.float8_mlp import float8_mlp_executor
from thunder_tune.executors.float8_static import float8_static_executor
from thunder_tune.executors.folded_conv import (
    folded_conv_executor,
    folded_cublaslt_executor,
    folded_matmul_executor,
)
from thunder_tune.executors.fused_attention import cudnn_executor, flash_executor
from thunder_tune.executors.grouped_attention import grouped_sdpa_executor
from thunder_tune.executors.kernels import cublaslt, quack_products
from thunder_tune.executors.linear_add import linear_add_executor
from thunder_tune.executors.linear_gelu import addmm_gelu_executor
from thunder_tune.executors.matmul_conv import matmul_conv_executor
from thunder_tune.executors.packed_linear import packed_linear_executor
from thunder_tune.executors.quack import quack_executor
from thunder_tune.executors.short_attention import short_attention_executor
from thunder_tune.executors.split_attention import split_attention_executor
from thunder_tune.executors.stem_conv import folded_stem_executor, space_to_depth_executor
from thunder_tune.executors.weight_only import BY_FORMAT, FEW_ROWS
from thunder_tune.executors.written_back import in_place_executor


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorExecutorInfo:
    """An operator executor that a class of ops may be sent to.

    Attributes:
        name: Choice in the search space.
        thunder_name: Name in Thunder's registry.
        kinds: Anchor kinds or rewrites it implements; empty: all anchors.
        needs_cuda: Whether it runs on CUDA only.
        module: Python module that must be importable, or "".
        extra: Extra of thunder-tune that brings it, or "".
        trains: Whether it has a gradient rule, its own or Thunder's.
        computes: Type it computes in, or "": the type of its inputs.
        lacks: Says what else is missing here, or returns "".
    """

    name: str
    thunder_name: str
    kinds: tuple[str, ...] = ()
    needs_cuda: bool = False
    module: str = ""
    extra: str = ""
    trains: bool = True
    computes: str = ""
    lacks: Callable[[], str] | None = None


OPERATOR_EXECUTORS = (
    OperatorExecutorInfo(name="torch", thunder_name="torch"),
    OperatorExecutorInfo(name="sdpa", thunder_name="sdpa", kinds=("sdpa",), needs_cuda=True),
    OperatorExecutorInfo(
        name="cudnn",
        thunder_name="cudnn",
        kinds=("sdpa",),
        needs_cuda=True,
        module="cudnn",
        extra="cudnn",
    ),
    OperatorExecutorInfo(
        name="short_attention",
        thunder_name=short_attention_executor.name,
        kinds=("sdpa",),
        needs_cuda=True,
        trains=False,
    ),
    OperatorExecutorInfo(
        name="split_attention",
        thunder_name=split_attention_executor.name,
        kinds=("sdpa", "grouped_attention"),
        needs_cuda=True,
        trains=False,
    ),
    OperatorExecutorInfo(
        name="matmul", thunder_name=matmul_conv_executor.name, kinds=("conv",), trains=False
    ),
    OperatorExecutorInfo(
        name="space_to_depth",
        thunder_name=space_to_depth_executor.name,
        kinds=("conv",),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="cublaslt",
        thunder_name=cublaslt_executor.name,
        kinds=("linear", "linear_gelu", "linear_add", "packed_linear"),
        needs_cuda=True,
        trains=False,
        lacks=cublaslt.available,
    ),
    OperatorExecutorInfo(
        name="quack",
        thunder_name=quack_executor.name,
        kinds=("linear", "linear_gelu", "linear_add", "packed_linear", "gated_linear"),
        needs_cuda=True,
        trains=False,
        lacks=quack_products.available,
    ),
    OperatorExecutorInfo(
        name="addmm_gelu",
        thunder_name=addmm_gelu_executor.name,
        kinds=("linear_gelu",),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="addmm_residual",
        thunder_name=linear_add_executor.name,
        kinds=("linear_add",),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="packed_linear",
        thunder_name=packed_linear_executor.name,
        kinds=("packed_linear",),
    ),
    OperatorExecutorInfo(
        name="grouped_sdpa",
        thunder_name=grouped_sdpa_executor.name,
        kinds=("grouped_attention",),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="flash_attention",
        thunder_name=flash_executor.name,
        kinds=("sdpa", "grouped_attention"),
    ),
    OperatorExecutorInfo(
        name="cudnn_attention",
        thunder_name=cudnn_executor.name,
        kinds=("sdpa", "grouped_attention"),
    ),
    OperatorExecutorInfo(
        name="flash_attention_4",
        thunder_name=flash_4_executor.name,
        kinds=("sdpa", "grouped_attention"),
        lacks=flash_4_available,
    ),
    OperatorExecutorInfo(
        name="float8",
        thunder_name=float8_executor.name,
        kinds=("linear", "packed_linear"),
        trains=False,
        computes="float8_e4m3fn",
    ),
    OperatorExecutorInfo(
        name="float8_static",
        thunder_name=float8_static_executor.name,
        kinds=("linear", "packed_linear"),
        trains=False,
        computes="float8_e4m3fn",
    ),
    OperatorExecutorInfo(
        name="float8_mlp",
        thunder_name=float8_mlp_executor.name,
        kinds=("mlp_add", "mlp"),
        trains=False,
        computes="float8_e4m3fn",
    ),
    OperatorExecutorInfo(
        name="few_rows",
        thunder_name=FEW_ROWS.executor.name,
        kinds=FEW_ROWS.kinds,
        needs_cuda=True,
        trains=False,
    ),
    *(
        OperatorExecutorInfo(
            name=f"{name}_weights",
            thunder_name=packing.executor.name,
            kinds=packing.kinds,
            trains=False,
            computes=name,
        )
        for name, packing in BY_FORMAT.items()
    ),
    OperatorExecutorInfo(
        name="folded_conv",
        thunder_name=folded_conv_executor.name,
        kinds=("conv_bn_add_relu", "conv_bn_relu", "conv_bn"),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="folded_matmul",
        thunder_name=folded_matmul_executor.name,
        kinds=("conv_bn_add_relu", "conv_bn_relu", "conv_bn"),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="folded_cublaslt",
        thunder_name=folded_cublaslt_executor.name,
        kinds=("conv_bn_add_relu", "conv_bn_relu", "conv_bn"),
        needs_cuda=True,
        trains=False,
        lacks=cublaslt.available,
    ),
    OperatorExecutorInfo(
        name="folded_stem",
        thunder_name=folded_stem_executor.name,
        kinds=("conv_bn_relu", "conv_bn"),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="in_place",
        thunder_name=in_place_executor.name,
        kinds=("written_back",),
        trains=False,
    ),
    OperatorExecutorInfo(
        name="apex",
        thunder_name="apex",
        kinds=("cross_entropy",),
        needs_cuda=True,
        module="apex",
    ),
    OperatorExecutorInfo(
        name="triton",
        thunder_name="triton",
        kinds=("cross_entropy",),
        needs_cuda=True,
        trains=False,
    ),
)

_BY_NAME = {info.name: info for info in OPERATOR_EXECUTORS}


def executors_for(kind: str, *, only: bool = False) -> tuple[OperatorExecutorInfo, ...]:
    """Return the executors that implement a kind of op or rewrite.

    Args:
        kind: Of anchor, or name of a rewrite.
        only: Leave out those that implement every anchor.
    """
    return tuple(
        info for info in OPERATOR_EXECUTORS if kind in info.kinds or not (info.kinds or only)
    )


def computes_in(name: str) -> str:
    """Return the type that an executor computes in, or "": the type of its inputs."""
    return _BY_NAME[name].computes if name in _BY_NAME else ""


def operator_executor(name: str) -> Executor | None:
    """Return Thunder's executor of this name, or None where it is not installed."""
    info = _BY_NAME.get(name)
    return get_executor(info.thunder_name) if info is not None else None


def accepts(executor: Executor, bsym: BoundSymbol) -> bool:
    """Return whether an executor runs an op, and runs it right.

    Thunder's `cudnn` takes a mask for row-major, whatever its strides: of one that is expanded it
    reads past the end. Masks that models pass on are expanded as a rule, so it gets none.

    Raises:
        Exception: The executor's own checker did.
    """
    if executor.name == _BY_NAME["cudnn"].thunder_name and _mask(bsym) is not None:
        return False
    return bool(executor.can_execute(bsym))


def _mask(bsym: BoundSymbol) -> object:
    """Return the mask of an attention op, which is its fourth argument."""
    return bsym.args[3] if len(bsym.args) > 3 else bsym.kwargs.get("attn_mask")


def unavailable_reason(name: str, device: str) -> str:
    """Say why an executor cannot run here at all, or return ""."""
    info = _BY_NAME.get(name)
    if info is None:
        return f"no executor of the name {name!r}"
    if info.needs_cuda and (device != "cuda" or not torch.cuda.is_available()):
        return "needs a CUDA device"
    if info.module and find_spec(info.module) is None:
        hint = f": pip install 'thunder-tune[{info.extra}]'" if info.extra else ""
        return f"{info.module} is not installed{hint}"
    if get_executor(info.thunder_name) is None:
        return f"thunder did not register {info.thunder_name!r} (version mismatch?)"
    return info.lacks() if info.lacks is not None else ""
