"""Products of e4m3 matrices by cuBLASLt: what is refused, what they are planned for, results."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int8, c_int32, c_uint32, c_uint64, c_void_p

import pytest
import torch
import torch.nn.functional as F

from thunder_tune.executors.kernels import cublaslt, cublaslt_plans
from thunder_tune.executors.kernels import cublaslt_library as lt
from thunder_tune.executors.kernels.cublaslt_float8 import E4M3, float8_linear

ROWS, IN, OUT = 6, 32, 16
LARGEST = 448.0


def operands(rows=ROWS, width=IN, out=OUT, device="cpu", seed=0):
    """Input, weight, bias, residual, and their scales."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, width), (out, width), (out,), (rows, out))
    x, weight, bias, residual = (torch.randn(s, generator=generator) for s in shapes)
    x_scale, weight_scale = torch.tensor(2.0**-5), torch.tensor(0.75 / width**0.5 / 32)
    return {
        "x": (x / x_scale).to(device, E4M3),
        "weight": (weight * 24).to(device, E4M3),
        "bias": bias.to(device, torch.bfloat16),
        "residual": residual.to(device, torch.bfloat16),
        "x_scale": x_scale.to(device),
        "weight_scale": weight_scale.to(device),
    }


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"activation": "tanh"}, "activation is 'tanh': None, 'relu' and 'gelu'"),
            ({"out_dtype": torch.float16}, "out_dtype is torch.float16: bfloat16 and"),
            ({"out_dtype": E4M3}, "a residual is given for an e4m3 result"),
            ({"out_multiplier": torch.ones(())}, "out_multiplier is given for a bfloat16 result"),
            ({"x": torch.zeros(ROWS, IN).bfloat16()}, r"x is \(6, 32\) torch.bfloat16 on cpu"),
            ({"x": torch.zeros(ROWS, IN + 16).to(E4M3)}, r"x and weight are \(6, 48\) and \(16"),
            ({"weight": torch.zeros(OUT, IN)}, r"weight is \(16, 32\) torch.float32"),
            ({"bias": torch.zeros(OUT)}, r"bias is \(16,\) torch.float32"),
            ({"residual": torch.zeros(1, OUT).bfloat16()}, r"residual is \(1, 16\)"),
            ({"x_scale": torch.ones(1)}, r"x_scale is \(1,\) torch.float32"),
            ({"weight_scale": torch.ones(()).double()}, r"weight_scale is \(\) torch.float64"),
            ({"weight": torch.zeros(IN, OUT).to(E4M3).t()}, r"weight has strides \(1, 16\)"),
            ({"bias": torch.zeros(1).bfloat16().expand(OUT)}, r"bias has strides \(0,\)"),
            ({"x": torch.zeros(IN, ROWS).to(E4M3).t()}, r"x has strides \(1, 6\)"),
            ({"x": torch.zeros(ROWS, 40).to(E4M3)[:, :IN]}, "x has rows 40 elements apart"),
            ({"x": torch.zeros(ROWS, 48).to(E4M3)[:, 8:40]}, "x has rows 48 elements apart"),
            ({}, "x is on cpu: cuBLASLt takes CUDA tensors"),
        ],
    )
    def test_others_are_refused(self, change, message):
        with pytest.raises(ValueError, match=message):
            float8_linear(**{**operands(), **change})

    @pytest.mark.parametrize(("width", "out"), [(24, 16), (32, 24)])
    def test_widths_are_multiples_of_sixteen(self, width, out):
        with pytest.raises(ValueError, match=f"weight is .{out}, {width}.: multiples of 16"):
            float8_linear(**operands(width=width, out=out))


def problem(given, out_dtype=torch.bfloat16, *, out_scale=0, activation=None):
    out = torch.empty(given["x"].shape[0], given["weight"].shape[0], dtype=out_dtype)
    at = cublaslt_plans.Addresses(4096, 4096, 4096, 4096, 4096, 256, 512, out_scale)
    residual = None if out_dtype == E4M3 else given["residual"]
    return cublaslt.problem_of(at, given["x"], given["weight"], residual, activation, out)


class TestProblem:
    def test_types(self):
        found = problem(operands())
        assert (found.dtype, found.added_dtype, found.out_dtype) == (
            E4M3,
            torch.bfloat16,
            torch.bfloat16,
        )
        assert found.is_float8
        assert found.compute == lt.CUBLAS_COMPUTE_32F

    def test_what_makes_another_plan(self):
        given = operands()
        found = {
            problem(given),
            problem(given, E4M3),
            problem(given, E4M3, out_scale=768),
            problem(given, E4M3, out_scale=768, activation="gelu"),
        }
        assert len(found) == 4
        assert problem(given, E4M3, out_scale=768) == problem(given, E4M3, out_scale=1024)


def expected(given, activation, *, has_residual):
    """Compute in float64 from the rounded operands."""
    wide = {name: tensor.double() for name, tensor in given.items()}
    y = F.linear(wide["x"], wide["weight"]) * wide["x_scale"] * wide["weight_scale"]
    y = y + wide["bias"] if "bias" in wide else y
    y = y + wide["residual"] if has_residual else y
    if activation == "gelu":
        return F.gelu(y, approximate="tanh")
    return F.relu(y) if activation == "relu" else y


SHAPES = ((1, 64, 128), (197, 768, 256), (333, 64, 1040), (4096, 256, 64), (25, 3072, 768))


@pytest.mark.gpu
class TestOnDevice:
    @staticmethod
    def is_close(found, wanted, limit):
        error = ((found.double() - wanted).norm() / wanted.norm()).item()
        assert error < limit, f"{error} of {tuple(found.shape)} {found.dtype}"

    @staticmethod
    def made(has_bias, has_residual, *sizes, seed=0):
        given = operands(*sizes, device="cuda", seed=seed)
        for name, has in (("bias", has_bias), ("residual", has_residual)):
            if not has:
                del given[name]
        return given

    @pytest.mark.parametrize("activation", [None, "relu", "gelu"])
    @pytest.mark.parametrize("has_residual", [False, True])
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_bfloat16_results(self, activation, has_residual, has_bias):
        for shape in SHAPES:
            given = self.made(has_bias, has_residual, *shape)
            kept = {name: tensor.clone() for name, tensor in given.items()}
            for _ in range(2):
                found = float8_linear(**given, activation=activation)
                wanted = expected(given, activation, has_residual=has_residual)
                # bfloat16's rounding, the tensor cores' own sums, and an approximate tanh
                self.is_close(found, wanted, 5e-3)
            assert all(torch.equal(kept[n].float(), t.float()) for n, t in given.items())

    @pytest.mark.parametrize("activation", [None, "relu", "gelu"])
    @pytest.mark.parametrize("has_bias", [False, True])
    @pytest.mark.parametrize("multiplier", [None, 64.0])
    def test_e4m3_results(self, activation, has_bias, multiplier):
        for shape in SHAPES:
            given = self.made(has_bias, False, *shape)
            scale = None if multiplier is None else torch.tensor(multiplier, device="cuda")
            found = float8_linear(
                **given, activation=activation, out_dtype=E4M3, out_multiplier=scale
            )
            assert found.dtype == E4M3
            wanted = expected(given, activation, has_residual=False) * (multiplier or 1.0)
            self.is_close(found, wanted.clamp(-LARGEST, LARGEST), 4e-2)

    @pytest.mark.parametrize("activation", [None, "relu", "gelu"])
    def test_e4m3_results_saturate(self, activation):
        given = self.made(True, False, 256, 256, 128)
        scale = torch.tensor(1e4, device="cuda")
        found = float8_linear(
            **given, activation=activation, out_dtype=E4M3, out_multiplier=scale
        ).float()
        wanted = expected(given, activation, has_residual=False) * 1e4
        assert found.isfinite().all()
        beyond = wanted.abs() > 1.1 * LARGEST
        assert beyond.any()
        assert torch.equal(found[beyond], LARGEST * wanted[beyond].sign().float())

    def test_scales_that_change_count_at_once(self):
        given = self.made(False, False, 64, 128, 64)
        first = float8_linear(**given)
        other = {**given, "x_scale": 4 * given["x_scale"]}
        assert torch.equal(float8_linear(**other), 4 * first)
        given["weight_scale"].mul_(2.0)
        assert torch.equal(float8_linear(**given), 2 * first)

    def test_strides(self):
        given = self.made(True, True, 65, 128, 64)
        wide = torch.randn(65, 3 * 128, device="cuda").to(E4M3)
        added = torch.randn(65, 208, device="cuda").bfloat16()[:, 16:80]
        for x in wide.split(128, 1):
            case = {**given, "x": x, "residual": added}
            self.is_close(float8_linear(**case), expected(case, None, has_residual=True), 5e-3)

    def test_no_rows(self):
        given = self.made(True, False, 0)
        assert float8_linear(**given, out_dtype=E4M3).shape == (0, OUT)

    @pytest.mark.parametrize("out_dtype", [torch.bfloat16, E4M3])
    @pytest.mark.parametrize("activation", [None, "relu", "gelu"])
    @pytest.mark.parametrize("is_planned", [False, True])
    def test_in_a_cuda_graph(self, out_dtype, activation, is_planned):
        # Rows of their own, so that no other test has planned them.
        rows = 211 + is_planned
        given = self.made(True, False, rows, 256, 128)
        scale = torch.tensor(32.0, device="cuda") if out_dtype == E4M3 else None
        kwargs = {"activation": activation, "out_dtype": out_dtype, "out_multiplier": scale}
        float8_linear(**{**given, "x": given["x"][:1]}, **kwargs)  # the library's handle
        if is_planned:
            float8_linear(**given, **kwargs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = float8_linear(**given, **kwargs)
        for seed in (1, 2):
            given["x"].copy_(operands(rows, 256, 128, seed=seed)["x"])
            graph.replay()
            wanted = expected(given, activation, has_residual=False)
            wanted = wanted if scale is None else (wanted * 32.0).clamp(-LARGEST, LARGEST)
            self.is_close(found, wanted, 5e-3 if scale is None else 4e-2)

    def test_two_products_in_a_row_take_each_others_values(self):
        """Fully in FP8, as an MLP: against float64 of the same roundings."""
        up, down = self.made(True, False, 200, 128, 512), self.made(True, True, 200, 512, 128)
        scale = torch.tensor(2.0**-5, device="cuda")
        hidden = float8_linear(**up, activation="gelu", out_dtype=E4M3, out_multiplier=1 / scale)
        down.update(x=hidden, x_scale=scale)
        self.is_close(float8_linear(**down), expected(down, None, has_residual=True), 5e-3)


def lt_attribute(function, descriptor, attribute, kind):
    function.argtypes = (c_void_p, ctypes.c_int, c_void_p, ctypes.c_size_t, c_void_p)
    value, written = kind(), ctypes.c_size_t()
    size = ctypes.sizeof(value)
    lt.check(function(descriptor, attribute, byref(value), size, byref(written)), "get")
    assert written.value == size
    return value.value


@pytest.mark.gpu
def test_descriptors_say_what_the_problem_is():
    given = operands()
    made = cublaslt_plans.Descriptors(problem(given, E4M3, out_scale=768)._replace(device=0))
    made.point_to(cublaslt_plans.Addresses(0, 0, 0, 0, 0, 256, 512, 768))
    get = lt.library().cublasLtMatmulDescGetAttribute
    attributes = ((17, c_uint64), (18, c_uint64), (20, c_uint64), (25, c_int8))
    assert [lt_attribute(get, made.product, *a) for a in attributes] == [512, 256, 768, 1]
    get = lt.library().cublasLtMatrixLayoutGetAttribute
    layouts = (made.weight, made.x, made.residual, made.out)
    assert [lt_attribute(get, layout, 0, c_uint32) for layout in layouts] == [28, 28, 14, 28]
    with_bias = problem(given)
    assert with_bias.epilogue == 4
    made = cublaslt_plans.Descriptors(with_bias._replace(device=0))
    get = lt.library().cublasLtMatmulDescGetAttribute
    assert lt_attribute(get, made.product, 26, c_int32) == 14
