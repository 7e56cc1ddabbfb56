"""The tail of a program: cut off where its results are large, and the same together."""

from __future__ import annotations

import pytest
import thunder
import torch
from torch import nn

from thunder_tune.compiler import tail
from thunder_tune.compiler.dispatch import executors_for
from thunder_tune.compiler.tagging import tagged
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


class Head(nn.Module):
    """A body, and a head whose result is large."""

    def __init__(self, variant: str = "plain") -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 64)
        self.variant = variant

    def forward(self, x):
        hidden = nn.functional.gelu(self.body(x))
        logits = self.head(hidden)
        if self.variant == "plain":
            return logits
        if self.variant == "hidden too":
            return {"logits": logits, "hidden": hidden}
        if self.variant == "twice":
            return logits, self.head(x)
        if self.variant == "read on":
            return logits, logits.sum()
        return logits.view(-1)


@pytest.fixture(autouse=True)
def large(monkeypatch):
    monkeypatch.setattr(tail, "LARGE", 4 * 64 * 2)


@pytest.fixture
def x():
    return torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


def split_of(model, x, **choices):
    """Return the parts of a model's only graph, the whole graph, and its inputs."""
    found = capture(model, (x,), {})
    plan = resolve(found.program, choices)
    graph = found.graphs[0]
    trace = tagged(graph.trace, range(len(found.program.ops)))
    whole, _ = thunder.transform_for_execution(trace, executors_list=executors_for(plan))
    run, inputs = whole.python_callable(), []
    graph.bound = lambda *values: inputs.extend(values) or run(*values)
    with torch.no_grad():
        found.entry(x)
    return tail.split(whole), run, inputs


@pytest.mark.parametrize(("variant", "copied"), [("plain", 0), ("hidden too", 1), ("twice", 0)])
def test_head_and_tail_together_are_the_program(x, variant, copied):
    torch.manual_seed(0)
    copies = []
    with torch.no_grad():
        parts, run, inputs = split_of(Head(variant).requires_grad_(False), x)
        got = parts.finish(inputs, parts.head(*inputs), lambda t: copies.append(t) or t.clone())
        expected = run(*inputs)
    assert torch.utils._pytree.tree_structure(got) == torch.utils._pytree.tree_structure(expected)
    for g, e in zip(got, expected, strict=True):
        assert torch.equal(g, e)
    assert len(copies) == copied


@pytest.mark.parametrize("variant", ["read on", "viewed"])
def test_a_result_that_is_read_or_viewed_stays(x, variant):
    assert split_of(Head(variant).requires_grad_(False), x)[0] is None


def test_small_results_stay(x, monkeypatch):
    monkeypatch.setattr(tail, "LARGE", 4 * 64 * 2 + 1)
    assert split_of(Head().requires_grad_(False), x)[0] is None


def test_a_region_stays(x):
    model = Head().requires_grad_(False)
    classes = capture(model, (x,), {}).program.classes
    everything = {("executor:" if c.is_anchor else "fuser:") + c.id: "inductor" for c in classes}
    assert split_of(model, x, **everything)[0] is None
