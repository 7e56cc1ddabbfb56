"""cuBLASLt's products: what is refused, what a plan is for, what the library is told, results."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.executors.kernels import cublaslt, cublaslt_plans
from thunder_tune.executors.kernels import cublaslt_library as lt

ROWS, IN, OUT = 6, 16, 8


def operands(rows=ROWS, width=IN, out=OUT, dtype=torch.bfloat16, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, width), (out, width), (out,), (rows, out))
    x, weight, bias, residual = (torch.randn(s, generator=generator) for s in shapes)
    made = (x, weight / width**0.5, bias, residual)
    return [t.to(device, dtype) for t in made]


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"activation": "tanh"}, "activation is 'tanh': None, 'relu' and 'gelu'"),
            ({"x": torch.zeros(ROWS, IN).double()}, "x is torch.float64"),
            ({"x": torch.zeros(2, 3, IN).bfloat16()}, r"x and weight are \(2, 3, 16\) and"),
            ({"weight": torch.zeros(OUT, 3).bfloat16()}, r"x and weight are \(6, 16\) and \(8, 3"),
            ({"weight": torch.zeros(OUT, IN)}, r"weight is \(8, 16\) torch.float32"),
            ({"weight": torch.zeros(IN, OUT).bfloat16().t()}, r"weight has strides \(1, 8\)"),
            ({"bias": torch.zeros(OUT + 1).bfloat16()}, r"bias is \(9,\)"),
            ({"bias": torch.zeros(1).bfloat16().expand(OUT)}, r"bias has strides \(0,\)"),
            ({"residual": torch.zeros(1, OUT).bfloat16()}, r"residual is \(1, 8\)"),
            ({"residual": torch.zeros(ROWS, OUT)}, r"residual is \(6, 8\) torch.float32"),
            ({"residual": torch.zeros(OUT).bfloat16().expand(ROWS, OUT)}, "residual has strides"),
            ({"x": torch.zeros(IN, ROWS).bfloat16().t()}, r"x has strides \(1, 6\)"),
            ({"out": torch.zeros(OUT, ROWS).bfloat16().t()}, r"out has strides \(1, 6\)"),
            ({}, "x is on cpu: cuBLASLt takes CUDA tensors"),
        ],
    )
    def test_others_are_refused(self, change, message):
        x, weight, bias, residual = operands()
        given_ = {"x": x, "weight": weight, "bias": bias, "residual": residual, **change}
        with pytest.raises(ValueError, match=message):
            cublaslt.linear(**given_)

    @pytest.mark.parametrize(
        ("matrix", "expected"),
        [
            (torch.zeros(4, 6), True),
            (torch.zeros(4, 6)[:, 1:3], True),
            (torch.zeros(4, 6)[::2], True),
            (torch.zeros(1, 6)[:, ::2], False),
            (torch.zeros(4, 6)[:, ::6], True),
            (torch.zeros(4, 6).t(), False),
            (torch.zeros(6).expand(4, 6), False),
            (torch.zeros(6).expand(1, 6), True),
        ],
    )
    def test_rows_that_lie_apart(self, matrix, expected):
        assert cublaslt.has_rows(matrix) is expected


def problem(x, weight, bias=None, residual=None, activation=None, addresses=(0, 0, 0, 0)):
    out = x.new_empty(x.shape[0], weight.shape[0])
    places = (4096, 8192, 4096 if bias is not None else 0, 4096, 4096)
    at = cublaslt_plans.Addresses(*(p + a for p, a in zip(places, (*addresses, 0), strict=True)))
    return cublaslt.problem_of(at, x, weight, residual, activation, out)


class TestProblem:
    def test_sizes_and_strides(self):
        x, weight, bias, _ = operands()
        wide = torch.zeros(ROWS, 40, dtype=x.dtype)
        found = problem(wide[:, :IN], weight, bias, wide[:, IN : IN + OUT])
        assert (found.rows, found.inner, found.outer) == (ROWS, IN, OUT)
        assert (found.x_stride, found.residual_stride, found.out_stride) == (40, 40, OUT)
        assert problem(x, weight, bias).residual_stride == 0
        assert problem(x[:1].as_strided((1, IN), (1, 1)), weight).x_stride == IN

    @pytest.mark.parametrize(
        ("has_bias", "activation", "epilogue"),
        [
            (False, None, 1),  # CUBLASLT_EPILOGUE_DEFAULT
            (False, "relu", 2),  # CUBLASLT_EPILOGUE_RELU
            (False, "gelu", 32),  # CUBLASLT_EPILOGUE_GELU
            (True, None, 4),  # CUBLASLT_EPILOGUE_BIAS
            (True, "relu", 6),  # CUBLASLT_EPILOGUE_RELU_BIAS
            (True, "gelu", 36),  # CUBLASLT_EPILOGUE_GELU_BIAS
        ],
    )
    def test_epilogue(self, has_bias, activation, epilogue):
        x, weight, bias, _ = operands()
        found = problem(x, weight, bias if has_bias else None, activation=activation)
        assert found.epilogue == epilogue

    @given(st.lists(st.sampled_from([0, 2, 4, 16, 48, 64, 256, 512]), min_size=4, max_size=4))
    def test_alignment_divides_every_address(self, offsets):
        x, weight, bias, residual = operands()
        found = problem(x, weight, bias, residual, addresses=offsets).alignment
        assert all(offset % found == 0 for offset in offsets)
        assert found == 256 or any(offset % (2 * found) for offset in offsets)

    def test_what_else_makes_another_plan(self):
        x, weight, bias, _ = operands()
        first = problem(x, weight, bias)
        assert problem(x.clone(), weight.clone(), bias.clone()) == first
        others = [
            problem(x[1:], weight, bias),
            problem(x, weight),
            problem(x.half(), weight.half(), bias.half()),
        ]
        assert len({first, *others}) == 4
        torch.use_deterministic_algorithms(True)
        try:
            assert problem(x, weight, bias) != first
        finally:
            torch.use_deterministic_algorithms(False)

    @pytest.mark.parametrize(("precision", "compute"), [("highest", 68), ("high", 77)])
    def test_float32_follows_the_tf32_setting(self, precision, compute):
        x, weight, _, _ = operands(dtype=torch.float32)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            assert problem(x, weight).compute == compute
            assert problem(x.half(), weight.half()).compute == 68
        finally:
            torch.set_float32_matmul_precision(before)


def test_the_result_of_the_heuristic_has_the_size_of_the_headers():
    # cublasLtMatmulAlgo_t data[8], size_t, cublasStatus_t, float, int reserved[4]
    assert ctypes.sizeof(lt.HeuristicResult) == 64 + 8 + 4 + 4 + 16
    assert lt.HeuristicResult.algo.offset == 0
    assert lt.HeuristicResult.state.offset == 72


def test_it_says_why_it_is_not_available(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert lt.available() == "needs a CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    lt.library.cache_clear()
    try:
        reason = "cuBLASLt: libcublasLt.so.99 was not found where torch's libraries are"
        assert lt.available() == reason
    finally:
        lt.library.cache_clear()


@pytest.mark.gpu
class TestOnDevice:
    @staticmethod
    def expected(x, weight, bias, residual, activation):
        y = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        y = y if residual is None else y + residual.double()
        if activation == "gelu":
            return F.gelu(y, approximate="tanh")
        return F.relu(y) if activation == "relu" else y

    @staticmethod
    def is_close(result, expected, more=0.0):
        error = (result.double() - expected).norm() / expected.norm()
        limit = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}[result.dtype]
        assert error < limit + more, f"{error} of {tuple(result.shape)} {result.dtype}"

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize("activation", [None, "relu", "gelu"])
    @pytest.mark.parametrize("has_residual", [False, True])
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_epilogues(self, dtype, activation, has_residual, has_bias):
        for rows, width, out in ((1, 64, 128), (197, 768, 256), (333, 64, 1000), (4096, 256, 64)):
            x, weight, bias, residual = operands(rows, width, out, dtype, "cuda")
            given_ = (bias if has_bias else None, residual if has_residual else None, activation)
            kept = [t.clone() for t in (x, weight, bias, residual)]
            for _ in range(2):
                found = cublaslt.linear(
                    x, weight, given_[0], residual=given_[1], activation=activation
                )
                more = 5e-4 if activation == "gelu" else 0.0  # the device's tanh is approximate
                self.is_close(found, self.expected(x, weight, *given_), more)
            assert all(map(torch.equal, (x, weight, bias, residual), kept))

    def test_strides(self):
        wide = operands(65, 3 * 128, 64, device="cuda")[0]
        _, weight, bias, _ = operands(65, 128, 64, device="cuda")
        added = torch.randn(65, 200, device="cuda").bfloat16()[:, 8:72]
        out = torch.zeros(65, 96, device="cuda", dtype=torch.bfloat16)
        for x in wide.split(128, 1):
            found = cublaslt.linear(x, weight, bias, residual=added, out=out[:, :64])
            assert found.data_ptr() == out.data_ptr()
            self.is_close(found, self.expected(x, weight, bias, added, None))
            assert not out[:, 64:].any(), "more than the result was written"

    def test_an_address_of_little_alignment(self):
        _, weight, bias, residual = operands(64, 128, 64, device="cuda")
        x = torch.randn(64 * 128 + 1, device="cuda").bfloat16()[1:].view(64, 128)
        found = cublaslt.linear(x, weight, bias, residual=residual)
        self.is_close(found, self.expected(x, weight, bias, residual, None))

    def test_the_residual_may_take_the_result(self):
        x, weight, bias, residual = operands(130, 128, 64, device="cuda")
        expected = self.expected(x, weight, bias, residual, "relu")
        found = cublaslt.linear(
            x, weight, bias, residual=residual, activation="relu", out=residual
        )
        self.is_close(found, expected)

    def test_no_rows(self):
        x, weight, bias, _ = operands(0, device="cuda")
        assert cublaslt.linear(x, weight, bias).shape == (0, OUT)

    def test_each_call_has_its_own_bias(self):
        x, weight, _, _ = operands(64, 128, 64, device="cuda")
        biases = [torch.full((64,), float(i), device="cuda").bfloat16() for i in range(5)]
        found = [cublaslt.linear(x, weight, bias) for bias in biases]
        for y, bias in zip(found, biases, strict=True):
            self.is_close(y, self.expected(x, weight, bias, None, None))

    @pytest.mark.parametrize("is_planned", [False, True])
    def test_in_a_cuda_graph(self, is_planned):
        # Rows of their own, so that no other test has planned them.
        x, weight, bias, residual = operands(211 + is_planned, 256, 128, device="cuda")
        cublaslt.linear(x[:1], weight, bias)  # the library's handle
        if is_planned:
            cublaslt.linear(x, weight, bias, residual=residual, activation="relu")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = cublaslt.linear(x, weight, bias, residual=residual, activation="relu")
        for seed in (1, 2):
            x.copy_(operands(len(x), 256, 128, seed=seed)[0])
            graph.replay()
            self.is_close(found, self.expected(x, weight, bias, residual, "relu"))

    def test_two_streams(self):
        streams = [torch.cuda.Stream() for _ in range(2)]
        # Few rows, a long sum: what is split, and needs workspace.
        given_ = [operands(64, 16384, 64, device="cuda", seed=seed) for seed in range(2)]
        torch.cuda.synchronize()
        found = [[], []]
        for _ in range(20):
            for results, stream, (x, weight, bias, residual) in zip(
                found, streams, given_, strict=True
            ):
                with torch.cuda.stream(stream):
                    results.append(cublaslt.linear(x, weight, bias, residual=residual))
        torch.cuda.synchronize()
        for results, given_one in zip(found, given_, strict=True):
            expected = self.expected(*given_one, None)
            for result in results:
                self.is_close(result, expected)

    def test_deterministic_algorithms(self):
        x, weight, bias, residual = operands(64, 16384, 64, device="cuda")
        torch.use_deterministic_algorithms(True)
        try:
            found = [cublaslt.linear(x, weight, bias, residual=residual) for _ in range(5)]
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(torch.equal(found[0], other) for other in found)
        self.is_close(found[0], self.expected(x, weight, bias, residual, None))


def _attribute(function, descriptor, attribute, kind):
    function.argtypes = (c_void_p, ctypes.c_int, c_void_p, ctypes.c_size_t, c_void_p)
    value, written = kind(), ctypes.c_size_t()
    lt.check(
        function(descriptor, attribute, byref(value), ctypes.sizeof(value), byref(written)), "get"
    )
    assert written.value == ctypes.sizeof(value)
    return value.value


@pytest.mark.gpu
def test_descriptors_say_what_the_problem_is():
    x, weight, bias, residual = operands()
    wide = torch.zeros(ROWS, 40, dtype=x.dtype)
    found = problem(wide[:, :IN], weight, bias, residual, "relu")
    made = cublaslt_plans.Descriptors(found._replace(device=0))
    made.point_to(cublaslt_plans.Addresses(0, 0, 4096, 0, 0))
    get = lt.library().cublasLtMatmulDescGetAttribute
    attributes = ((3, c_int32), (7, c_uint32), (8, c_uint64), (26, c_int32))
    said = [_attribute(get, made.product, a, kind) for a, kind in attributes]
    assert said == [1, 6, 4096, 14]
    get = lt.library().cublasLtMatrixLayoutGetAttribute
    attributes = ((0, c_uint32), (2, c_uint64), (3, c_uint64), (4, c_int64))
    for layout, expected in (
        (made.weight, [14, IN, OUT, IN]),
        (made.x, [14, IN, ROWS, 40]),
        (made.residual, [14, OUT, ROWS, OUT]),
        (made.out, [14, OUT, ROWS, OUT]),
    ):
        assert [_attribute(get, layout, a, kind) for a, kind in attributes] == expected
