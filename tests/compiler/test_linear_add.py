"""A residual takes the sum in its own memory, where nobody can see that."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from thunder_tune.compiler import build, viability
from thunder_tune.executors.linear_add import addmm_residual
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

IN, OUT = 8, 6


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, IN), (OUT, IN), (2, 3, OUT))
    return tuple(torch.randn(*shape, generator=generator) for shape in shapes)


def made_here(x, weight, residual):
    return torch.tanh(residual) + F.linear(x, weight)


def other_order(x, weight, residual):
    return F.linear(x, weight) + torch.tanh(residual)


def two_in_a_row(x, weight, residual):
    once = torch.tanh(residual) + F.linear(x, weight)
    return once + F.linear(torch.tanh(x), weight)


def of_what_it_multiplies(x, weight, residual):
    made = torch.tanh(residual)
    return made + F.linear(made, weight[:, :OUT])


def used_later(x, weight, residual):
    made = torch.tanh(residual)
    return torch.sin(made + F.linear(x, weight)) * made


def returned(x, weight, residual):
    made = torch.tanh(residual)
    return made, made + F.linear(x, weight)


def of_the_user(x, weight, residual):
    return residual + F.linear(x, weight)


def view_of_the_users(x, weight, residual):
    return residual.reshape(6, OUT) + F.linear(x.reshape(6, IN), weight)


def with_a_view_that_is_used_later(x, weight, residual):
    made = torch.tanh(residual)
    rows = made.view(6, OUT)
    total = made + F.linear(x, weight)
    return total, rows.sum(0)


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (made_here, [True]),
        (other_order, [True]),
        (two_in_a_row, [True, True]),
        (of_what_it_multiplies, [True]),  # by name; the product's own view of it counts
        (used_later, [False]),
        (returned, [False]),
        (of_the_user, [False]),
        (view_of_the_users, [True]),  # by name; its memory is the user's, which the call sees
        (with_a_view_that_is_used_later, [True]),
    ],
)
def test_results_and_whatever_else_lives(inputs, model, flags):
    kept = [x.clone() for x in inputs]
    with torch.no_grad():
        found = capture(model, inputs, {})
        assert {s.rewrite for s in found.program.sites} == {"linear_add"}
        offered = viability(found, "cpu")
        assert {offered(c.id, "addmm_residual") for c in found.program.site_classes} == {""}
        choices = {f"rewrite:{c.id}": "addmm_residual" for c in found.program.site_classes}
        built = build(model, resolve(found.program, choices), found)
        for _ in range(2):
            torch.testing.assert_close(built(*inputs), model(*inputs))
            assert all(map(torch.equal, inputs, kept)), "an input was overwritten"
    assert built.applied == 1.0
    sums = [b for b in built.graphs[0].forward.bound_symbols if b.sym.name == "addmm_residual"]
    assert [b.args[3:] == (True,) for b in sums] == flags


def test_a_bias_is_refused(inputs):
    def model(x, weight, residual):
        return residual + F.linear(x, weight, weight[:, 0])

    with torch.no_grad():
        found = capture(model, inputs, {})
    (site,) = found.program.sites
    assert site.rewrite == "linear_add"
    assert viability(found, "cpu")(site.class_id, "addmm_residual") == (
        "refuses thunder_tune.linear_add of this shape and type"
    )


class TestKernel:
    def test_the_sum_takes_the_residuals_memory(self, inputs):
        x, weight, residual = inputs
        expected = residual + F.linear(x, weight)
        place = residual.data_ptr()
        total = addmm_residual(x, weight, residual, may_overwrite=True)
        assert total.data_ptr() == place
        torch.testing.assert_close(total, expected)

    @pytest.mark.parametrize("how", ["a view lives", "a part", "not allowed", "not contiguous"])
    def test_or_memory_of_its_own(self, inputs, how):
        x, weight, residual = inputs
        alive = residual[0]
        if how != "a view lives":
            del alive
        if how == "a part":
            residual = torch.cat([residual, residual])[:2]
        if how == "not contiguous":
            residual = residual.transpose(1, 2).contiguous().transpose(1, 2)
        before = residual.clone()
        total = addmm_residual(x, weight, residual, may_overwrite=how != "not allowed")
        assert total.data_ptr() != residual.data_ptr()
        assert torch.equal(residual, before)
        torch.testing.assert_close(total, before + F.linear(x, weight))
