"""What a product of matrices is planned with: cuBLASLt's descriptors, and the fastest algorithm.

cuBLASLt's matrices are column-major: what is computed is out.T = weight @ x.T, where weight, as it
lies in memory, is the transpose of a column-major matrix, and x.T, residual.T and out.T are
column-major matrices as they lie.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from ctypes import byref, c_float, c_int, c_int8, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import torch

from thunder_tune.executors.kernels import cublaslt_library as lt
from thunder_tune.executors.kernels.choices import fastest, kept_choice
from thunder_tune.executors.kernels.cublaslt_library import check, library

WORKSPACE = 32 * 2**20
"""Most bytes of workspace that an algorithm may need."""
MOST_ALGORITHMS = 16

_ONE = byref(c_float(1.0))
_ZERO = byref(c_float(0.0))


@functools.cache
def _handle(device: int) -> c_void_p:
    handle = c_void_p()
    with torch.cuda.device(device):
        check(library().cublasLtCreate(byref(handle)), "cublasLtCreate")
    return handle


class Problem(NamedTuple):
    """What an algorithm is chosen for: the key of a plan.

    Attributes:
        device: Its index.
        dtype: Of x and of the weight; of bias and residual too, which with e4m3 are bfloat16.
        out_dtype: Of the result.
        compute: cublasComputeType_t.
        rows: Of x and of the result.
        inner: Columns of x and of the weight.
        outer: Columns of the result.
        x_stride: Elements from row to row of x.
        residual_stride: The same of the residual; 0: there is none.
        out_stride: The same of the result.
        epilogue: cublasLtEpilogue_t.
        is_out_scaled: Whether the result is multiplied by a number before it is rounded.
        alignment: Bytes that all addresses of matrices are multiples of, at most 256.
        is_deterministic: Whether torch was asked for deterministic algorithms.
    """

    device: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    compute: int
    rows: int
    inner: int
    outer: int
    x_stride: int
    residual_stride: int
    out_stride: int
    epilogue: int
    is_out_scaled: bool
    alignment: int
    is_deterministic: bool

    @property
    def is_float8(self) -> bool:
        """Whether x and the weight are e4m3, with a scale each."""
        return self.dtype == torch.float8_e4m3fn

    @property
    def added_dtype(self) -> torch.dtype:
        """Type of bias and residual."""
        return torch.bfloat16 if self.is_float8 else self.dtype


def _identity(problem: Problem) -> tuple[object, ...]:
    """Return what a choice depends on, the same in every process on such a device."""
    name = torch.cuda.get_device_name(problem.device)
    return (name, library().cublasLtGetVersion(), *problem[1:])


class Addresses(NamedTuple):
    """Where the operands of one call lie; 0: there is none. Scales are of e4m3 operands."""

    x: int
    weight: int
    bias: int
    residual: int
    out: int
    x_scale: int = 0
    weight_scale: int = 0
    out_scale: int = 0


class Algorithm(NamedTuple):
    """A configured algorithm: where its cublasLtMatmulAlgo_t is, its bytes, its workspace."""

    reference: Any
    configuration: bytes
    workspace: int


class Descriptors:
    """cuBLASLt's descriptors of a problem; they live as long as the process, as its plan does.

    Args:
        problem: Needs no device.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        dtype, added = (lt.CUDA_TYPES[t] for t in (problem.dtype, problem.added_dtype))
        self.product, self._pointer = c_void_p(), c_void_p()
        self._pointer_reference = byref(self._pointer)
        self._pointers: dict[int, int] = {}
        self.lock = threading.Lock()
        make = library().cublasLtMatmulDescCreate
        check(
            make(byref(self.product), problem.compute, lt.CUDA_R_32F), "cublasLtMatmulDescCreate"
        )
        self._set(lt.CUBLASLT_MATMUL_DESC_TRANSA, c_int32(lt.CUBLAS_OP_T))
        self._set(lt.CUBLASLT_MATMUL_DESC_EPILOGUE, c_uint32(problem.epilogue))
        if problem.epilogue & lt.CUBLASLT_EPILOGUE_BIAS:
            self._set(lt.CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, c_int32(added))
        if problem.is_float8:
            self._set(lt.CUBLASLT_MATMUL_DESC_FAST_ACCUM, c_int8(1))
        rows, inner, outer = problem.rows, problem.inner, problem.outer
        self.weight = self._layout(dtype, inner, outer, inner)
        self.x = self._layout(dtype, inner, rows, problem.x_stride)
        out_dtype = lt.CUDA_TYPES[problem.out_dtype]
        self.out = self._layout(out_dtype, outer, rows, problem.out_stride)
        # Without a residual beta is 0, and nothing is read by this one.
        added_stride = problem.residual_stride or problem.out_stride
        self.residual = self._layout(added, outer, rows, added_stride)

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.sizeof(value)
        status = library().cublasLtMatmulDescSetAttribute(
            self.product, attribute, byref(value), size
        )
        check(status, f"cublasLtMatmulDescSetAttribute({attribute})")

    @staticmethod
    def _layout(dtype: int, rows: int, columns: int, stride: int) -> c_void_p:
        layout = c_void_p()
        made = library().cublasLtMatrixLayoutCreate(byref(layout), dtype, rows, columns, stride)
        check(made, "cublasLtMatrixLayoutCreate")
        return layout

    def point_to(self, at: Addresses) -> None:
        """Point to bias and scales of the next call; the caller holds `lock` until it was made."""
        for attribute, address in (
            (lt.CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias),
            (lt.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.weight_scale),
            (lt.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.x_scale),
            (lt.CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, at.out_scale),
        ):
            if address == self._pointers.get(attribute, 0):
                continue
            self._pointer.value = address
            status = library().cublasLtMatmulDescSetAttribute(
                self.product, attribute, self._pointer_reference, 8
            )
            check(status, f"cublasLtMatmulDescSetAttribute({attribute})")
            self._pointers[attribute] = address

    def preference(self) -> c_void_p:
        """Return what algorithms are asked for; to be destroyed by the caller."""
        preference = c_void_p()
        made = library().cublasLtMatmulPreferenceCreate(byref(preference))
        check(made, "cublasLtMatmulPreferenceCreate")
        # CUBLASLT_REDUCTION_SCHEME_NONE is 0; the other adds up partial sums in a fixed order.
        schemes = lt.CUBLASLT_REDUCTION_SCHEME_MASK
        if self.problem.is_deterministic:
            schemes = lt.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
        wanted: list[tuple[int, Any]] = [
            (lt.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, c_uint64(WORKSPACE)),
            (lt.CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, c_uint32(schemes)),
        ]
        alignment = c_uint32(self.problem.alignment)
        wanted += [(attribute, alignment) for attribute in lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENTS]
        for attribute, value in wanted:
            status = library().cublasLtMatmulPreferenceSetAttribute(
                preference, attribute, byref(value), ctypes.sizeof(value)
            )
            check(status, f"cublasLtMatmulPreferenceSetAttribute({attribute})")
        return preference


class Plan:
    """A product of one problem: descriptors, and the algorithm chosen for it.

    Args:
        problem: Its device is the current one.
        at: Operands of the first call.
        is_timed: Whether to time algorithms; else the heuristic's first one is taken.
    """

    def __init__(self, problem: Problem, at: Addresses, *, is_timed: bool) -> None:
        self._handle = _handle(problem.device)
        self._of = Descriptors(problem)
        self._matmul = library().cublasLtMatmul
        self._beta = _ONE if problem.residual_stride else _ZERO
        self.algorithms = self._ask(at)
        self.chosen = self.algorithms[0]
        if is_timed:
            configurations = [a.configuration for a in self.algorithms]
            index = kept_choice(_identity(problem), configurations, lambda: self._fastest(at))
            self.chosen = self.algorithms[index]

    def _fastest(self, at: Addresses) -> int:
        """Time the algorithms on these operands; the result goes elsewhere."""
        problem = self._of.problem
        size = problem.rows * problem.out_stride
        scratch = torch.empty(size, dtype=problem.out_dtype, device=problem.device)
        elsewhere = at._replace(out=scratch.data_ptr())

        def launch(algorithm: Algorithm) -> bool:
            return self._launch(algorithm, elsewhere) == lt.CUBLAS_STATUS_SUCCESS

        found = fastest(self.algorithms, launch)
        return self.algorithms.index(found)

    def _ask(self, at: Addresses) -> tuple[Algorithm, ...]:
        """Return the heuristic's algorithms, the most promising one first."""
        of, count = self._of, c_int()
        results = (lt.HeuristicResult * MOST_ALGORITHMS)()
        of.point_to(at)  # the bias's alignment is read, and whether there are scales
        preference = of.preference()
        layouts = (of.weight, of.x, of.residual, of.out)
        status = library().cublasLtMatmulAlgoGetHeuristic(
            self._handle,
            of.product,
            *layouts,
            preference,
            MOST_ALGORITHMS,
            byref(results),
            byref(count),
        )
        library().cublasLtMatmulPreferenceDestroy(preference)
        check(status, f"cublasLtMatmulAlgoGetHeuristic for {of.problem}")
        good = [r for r in results[: count.value] if r.state == lt.CUBLAS_STATUS_SUCCESS]
        if not good:
            raise RuntimeError(f"cublasLtMatmulAlgoGetHeuristic names none for {of.problem}")
        return tuple(Algorithm(byref(r), bytes(r.algo), int(r.workspaceSize)) for r in good)

    def _launch(self, algorithm: Algorithm, at: Addresses) -> int:
        """Enqueue the product on the current stream and return the status.

        The workspace is taken anew for each call: the allocator keeps it from other streams, and
        under capture from whatever is no part of the graph.
        """
        of, space = self._of, None
        if algorithm.workspace:
            space = torch.empty(algorithm.workspace, dtype=torch.uint8, device=of.problem.device)
        with of.lock:
            of.point_to(at)
            status: int = self._matmul(
                self._handle,
                of.product,
                _ONE,
                at.weight,
                of.weight,
                at.x,
                of.x,
                self._beta,
                # In place only where both have one type.
                at.residual or (at.out if of.problem.out_dtype != torch.float8_e4m3fn else 0),
                of.residual,
                at.out,
                of.out,
                algorithm.reference,
                None if space is None else space.data_ptr(),
                algorithm.workspace,
                torch.cuda.current_stream().cuda_stream,
            )
        return status

    def __call__(self, at: Addresses) -> None:
        """Enqueue the product on the current stream.

        Raises:
            RuntimeError: cuBLASLt refused it.
        """
        status = self._launch(self.chosen, at)
        if status != lt.CUBLAS_STATUS_SUCCESS:
            check(status, f"cublasLtMatmul for {self._of.problem}")
