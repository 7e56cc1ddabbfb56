"""Writes into buffers, where the buffer lies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

LENGTH = 6


class Buffered(nn.Module):
    """Writes rows into a buffer, and uses it in one of several ways."""

    def __init__(self, use):
        super().__init__()
        self.register_buffer("rows", torch.arange(LENGTH * 3.0).view(LENGTH, 3))
        self.use = use

    def forward(self, x, at):
        return self.use(self.rows, x, at)


def reads_what_it_wrote(rows, x, at):
    rows.index_copy_(0, at, x)
    return (rows * 2).sum(0) + x


def returns_it(rows, x, at):
    rows.index_copy_(0, at, torch.tanh(x))
    return rows, rows.sum()


def writes_only(rows, x, at):
    rows.index_copy_(0, at, x)
    return torch.cos(x)


def along_another_dimension(rows, x, at):
    rows.index_copy_(1, at[1:], x.sum() + torch.ones(LENGTH, 1))
    return rows.sum(1)


def reads_before(rows, x, at):
    old = torch.exp(-rows)
    rows.index_copy_(0, at, x)
    return old + rows


def keeps_a_view(rows, x, at):
    first = rows[0]
    rows.index_copy_(0, at, x)
    return first * 2 + rows.sum(0)


def writes_twice(rows, x, at):
    rows.index_copy_(0, at, x)
    rows.index_copy_(0, at.flip(0), x)
    return rows.sum(0)


def changes_the_copy(rows, x, at):
    return rows.index_copy(0, at, x).sum(0)


MATCHING = [
    reads_what_it_wrote,
    returns_it,
    writes_only,
    along_another_dimension,
    keeps_a_view,
]
OTHERS = [reads_before, writes_twice, changes_the_copy]
INPUTS = (torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]]), torch.tensor([4, 1]))


def captured(model):
    with torch.no_grad():
        return capture(model, INPUTS, {})


def sites_of(found):
    return [s for s in found.program.sites if s.rewrite == "written_back"]


@pytest.mark.parametrize("use", MATCHING)
@pytest.mark.parametrize("fuser", ["torch", "inductor"])
def test_a_part_is_written_and_nothing_copied(use, fuser):
    eager, model = Buffered(use), Buffered(use)
    found = captured(model)
    (site,) = sites_of(found)
    choices = {f"fuser:{c.id}": fuser for c in found.program.classes if c.kind == "glue"}
    choices[f"rewrite:{site.class_id}"] = "in_place"
    built = build(model, resolve(found.program, choices), found)
    address = model.rows.data_ptr()
    for scale in (1.0, -3.0):
        inputs = (INPUTS[0] * scale, INPUTS[1])
        with torch.no_grad():
            torch.testing.assert_close(built(*inputs), eager(*inputs))
        torch.testing.assert_close(model.rows, eager.rows)
    assert model.rows.data_ptr() == address
    assert built.applied == 1.0
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
    assert "index_copy_in_place" in names
    assert not {"copy_", "index_copy"} & set(names)


@pytest.mark.parametrize("use", OTHERS)
def test_what_the_buffer_held_is_kept_where_it_is_used(use):
    eager, model = Buffered(use), Buffered(use)
    found = captured(model)
    assert sites_of(found) == []
    built = build(model, resolve(found.program, {}), found)
    with torch.no_grad():
        torch.testing.assert_close(built(*INPUTS), eager(*INPUTS))
    assert torch.equal(model.rows, eager.rows)
