"""The order of a program: faithful to the model, and what can be fused stands together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture, simplify
from thunder_tune.program.order import MOST, Role, Step, order, step_of
from thunder_tune.program.structure import ops_of
from thunder_tune.values.plan import resolve

FRONT_ENDS = ["dynamo", "thunder.jit"]


def op(role, makes, reads="", *, view=False, cast=False, random=False):
    return Step(
        role=role,
        makes=frozenset(makes.split()),
        reads=frozenset(reads.split()),
        is_view=view,
        is_cast=view or cast,
        is_random=random,
    )


def heavy(makes, reads="x", **more):
    return op(Role.HEAVY, makes, reads, **more)


def light(makes, reads, **more):
    return op(Role.LIGHT, makes, reads, **more)


def view(makes, reads):
    return light(makes, reads, view=True)


def barrier(makes="", reads=""):
    return op(Role.BARRIER, makes, reads)


GATED = [heavy("gate"), light("silu", "gate"), heavy("up"), light("y", "silu up"), heavy("o", "y")]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(GATED, [0, 2, 1, 3, 4], id="gate and up"),
        pytest.param(
            [
                heavy("q"),
                view("q1", "q"),
                light("q2", "q1"),
                heavy("k"),
                view("k1", "k"),
                light("k2", "k1"),
                heavy("v"),
                view("v1", "v"),
                heavy("a", "q2 k2 v1"),
            ],
            [0, 3, 6, 1, 2, 4, 5, 7, 8],
            id="query, key and value",
        ),
        pytest.param(
            [heavy("a"), light("a1", "a"), view("x1", "x"), heavy("b", "x1"), light("c", "a1 b")],
            [2, 0, 3, 1, 4],
            id="a view of the input goes before both",
        ),
        pytest.param(
            [heavy("a"), light("a1", "a"), view("a2", "a"), view("a3", "a2"), heavy("b", "a3")],
            [0, 2, 3, 4, 1],
            id="views of the first product stay between",
        ),
        pytest.param(
            [light("n", "x"), heavy("a", "n"), light("w1", "w", cast=True), heavy("b", "n w1")],
            [0, 2, 1, 3],
            id="a cast of a weight joins the ops before",
        ),
        pytest.param(
            [heavy("a"), view("x1", "x"), heavy("b", "x1")], [0, 1, 2], id="nothing to pass"
        ),
        pytest.param(
            [heavy("a"), light("b", "a"), light("c", "a"), heavy("d", "b")],
            [0, 1, 2, 3],
            id="a product of computed values stays",
        ),
        pytest.param(
            [heavy("a"), light("a1", "a"), light("n", "x"), heavy("b", "n")],
            [0, 1, 2, 3],
            id="a product of values computed from elsewhere stays",
        ),
        pytest.param(
            [heavy("a"), view("a1", "a"), light("a2", "a1", cast=True), heavy("b", "a2")],
            [0, 1, 2, 3],
            id="a product of the cast of another stays",
        ),
        pytest.param(
            [light("a", "x"), heavy("b"), light("c", "a b")], [0, 1, 2], id="the first one stays"
        ),
        pytest.param(
            [heavy("a"), light("b", "a"), barrier("x", "x"), heavy("c"), light("d", "b c")],
            [0, 1, 2, 3, 4],
            id="a write between",
        ),
        pytest.param(
            [heavy("a"), light("b", "a", random=True), heavy("c", random=True)],
            [0, 1, 2],
            id="both draw random numbers",
        ),
        pytest.param(
            [heavy("a"), light("b", "a", random=True), heavy("c"), light("d", "b c")],
            [0, 2, 1, 3],
            id="only the light one is random",
        ),
        pytest.param(
            [heavy("a"), light("b", "a"), light("r", "", random=True), heavy("c", "x r")],
            [0, 1, 2, 3],
            id="what it needs is random",
        ),
    ],
)
def test_examples(steps, expected):
    assert order(steps) == expected


def test_only_so_many_results_wait_for_their_readers():
    heads = [s for i in range(6) for s in (heavy(f"h{i}"), light(f"l{i}", f"h{i}"))]
    assert MOST == 4
    assert order(heads) == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 9, 11]


@st.composite
def programs(draw):
    names = ["x", "w"]
    steps = []
    for i in range(draw(st.integers(0, 24))):
        role = draw(st.sampled_from([*Role, Role.HEAVY, Role.LIGHT, Role.LIGHT]))
        recent = [*names[-6:], "x", "w"]
        reads = frozenset(draw(st.lists(st.sampled_from(recent), max_size=3)))
        is_view = role is Role.LIGHT and draw(st.booleans())
        is_cast = is_view or (role is Role.LIGHT and draw(st.booleans()))
        # Some views return what they are given, under its name.
        same = is_view and reads and draw(st.booleans())
        makes = frozenset([min(reads)] if same else [f"v{i}"])
        steps.append(
            Step(
                role=role,
                reads=reads,
                makes=makes,
                is_view=is_view,
                is_cast=is_cast,
                is_random=not is_cast and draw(st.integers(0, 4)) == 0,
            )
        )
        names += sorted(makes)
    return steps


def run(steps, positions):
    """Compute every step's result; random ones count, barriers change what all others see."""
    values, drawn, written = {}, 0, 0
    results = {}
    for i in positions:
        step = steps[i]
        inputs = tuple((n, values.get(n, n)) for n in sorted(step.reads))
        results[i] = hash((i, inputs, drawn if step.is_random else None, written))
        drawn += step.is_random
        written += step.role is Role.BARRIER
        if not step.makes <= step.reads:  # else it returns what it was given
            values.update(dict.fromkeys(step.makes, results[i]))
    return results


@settings(max_examples=400, deadline=None)
@given(steps=programs())
def test_any_program_computes_the_same_in_the_new_order(steps):
    positions = order(steps)
    assert sorted(positions) == list(range(len(steps)))
    assert run(steps, positions) == run(steps, range(len(steps)))
    new_place = {old: new for new, old in enumerate(positions)}
    for new, old in enumerate(positions):
        if steps[old].role is Role.BARRIER:
            assert set(positions[:new]) == set(range(old))
        if steps[old].role is Role.LIGHT:
            passed_by = [
                i
                for i in range(old + 1, len(steps))
                if steps[i].role is Role.HEAVY and new_place[i] < new
            ]
            assert len(passed_by) < MOST
    for kept in ([s.role is Role.HEAVY for s in steps], [s.is_random for s in steps]):
        places = [i for i in positions if kept[i]]
        assert places == sorted(places)
    again = [steps[i] for i in positions]
    assert order(again) == list(range(len(steps)))


@settings(max_examples=400, deadline=None)
@given(steps=programs())
def test_what_a_moved_step_reads_is_there(steps):
    made_at = {}
    for i, step in enumerate(steps):
        for name in step.makes - step.reads:
            made_at.setdefault(name, i)
    seen = set()
    for i in order(steps):
        assert all(made_at[n] in seen for n in steps[i].reads if n in made_at and made_at[n] < i)
        seen.add(i)


class Block(nn.Module):
    """A block as language models have it: rotated query and key, gate and up."""

    def __init__(self, width=16, heads=2, dropout=0.0):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.heads = heads
        self.dropout = dropout

    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def rotated(self, x, cos, sin):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * cos + turned * sin

    def split(self, x):
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x, cos, sin):
        y = self.norm(x)
        q = self.rotated(self.split(self.q(y)), cos, sin)
        k = self.rotated(self.split(self.k(y)), cos, sin)
        v = self.split(self.v(y))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*s, generator=generator) for s in ((2, 6, 16), (6, 8), (6, 8)))


def light_to_inductor(program, *, packed):
    """Choose Inductor for all but the products, which are packed where asked for."""
    choices = {
        ("executor:" if c.is_anchor else "fuser:") + c.id: "inductor"
        for c in program.classes
        if c.kind not in ("linear", "sdpa")
    }
    if packed:
        choices |= {
            f"rewrite:{c.id}": "packed_linear"
            for c in program.site_classes
            if c.kind == "packed_linear"
        }
    return choices


def built_block(inputs, *, training=False, packed=False):
    torch.manual_seed(0)
    model = Block().requires_grad_(training)
    found = capture(model, inputs, {}, front_end="dynamo", training=training)
    plan = resolve(found.program, light_to_inductor(found.program, packed=packed))
    return model, plan, build(model, plan, found)


def names_of_regions(program, plan):
    return [[program.ops[i].name.rsplit(".", 1)[-1] for i in r.ops] for r in plan.regions]


def fusions(trace):
    return sum(b.sym.is_fusion for b in trace.bound_symbols)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("packed", [False, True])
def test_rotations_share_a_region_and_so_do_silu_and_its_product(
    inputs, front_end, packed, monkeypatch
):
    program = capture(Block(), inputs, {}, front_end=front_end).program
    regions = names_of_regions(
        program, resolve(program, light_to_inductor(program, packed=packed))
    )
    assert [r.count("cat") for r in regions] == [0, 2, 0, 0, 0]
    assert regions[3] == ["silu", "mul"]
    # In the order of the model's code they are apart, packed or not.
    monkeypatch.setattr(simplify, "ordered", lambda trace: trace)
    torch._dynamo.reset()
    before = capture(Block(), inputs, {}, front_end=front_end).program
    regions = names_of_regions(before, resolve(before, light_to_inductor(before, packed=packed)))
    assert [r.count("cat") for r in regions] == [0, 1, 1, 0, 0, 0, 0]
    assert regions[4:6] == [["silu"], ["mul"]]
    assert sorted(op.name for op in program.ops) == sorted(op.name for op in before.ops)


@pytest.mark.parametrize("packed", [False, True])
def test_a_region_is_one_fusion(inputs, packed):
    model, plan, built = built_block(inputs, packed=packed)
    with torch.no_grad():
        torch.testing.assert_close(built(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    assert built.applied == 1.0
    assert fusions(built.graphs[0].forward) == len(plan.regions) == 5
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
    assert names.count("one_product") == (2 if packed else 0)
    assert names.count("linear") == (2 if packed else 7)


def test_gradients_are_those_of_eager_mode(inputs):
    model, plan, built = built_block(inputs, training=True)
    got, expected = built(*inputs), model(*inputs)
    (graph,) = built.graphs
    assert (fusions(graph.forward), fusions(graph.backward)) == (len(plan.regions), 3) == (5, 3)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad((y * weights).sum(), parameters) for y in (got, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_casts_of_autocast_do_not_stand_between_products(inputs):
    with torch.autocast("cpu", torch.bfloat16):
        program = capture(Block(), inputs, {}).program
    kinds = [op.kind for op in program.ops]
    first = kinds.index("linear")
    assert kinds[first : first + 3] == ["linear"] * 3
    assert kinds[first - 6 : first] == ["convert_element_type"] * 6


def test_random_numbers_are_those_of_eager_mode(inputs):
    torch.manual_seed(0)
    model = Block(dropout=0.5).train()
    found = capture(model, inputs, {}, training=True)
    kinds = [op.kind for op in found.program.ops]
    products = [i for i, kind in enumerate(kinds) if kind == "linear"][:3]
    assert products == [products[0], products[0] + 1, products[0] + 2]
    assert kinds.count("dropout") == 3
    built = build(model, resolve(found.program, {}), found)
    results = []
    for call in (built, model):
        torch.manual_seed(3)
        results.append(call(*inputs))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


class Between(nn.Module):
    """Two products of one input, and what stands between them and reads the first."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.function = function

    def forward(self, x):
        y = self.function(self, self.first(x))
        return y * self.second(x)


@pytest.mark.parametrize(
    ("function", "moves"),
    [
        pytest.param(lambda _, y: F.softmax(y, -1), True, id="softmax"),
        pytest.param(lambda m, y: F.layer_norm(y, (4,)), True, id="norm"),
        pytest.param(lambda _, y: F.dropout(y, 0.5), True, id="dropout"),
        pytest.param(lambda m, y: m.norm(y), False, id="a batch norm that writes"),
        pytest.param(lambda _, y: torch.einsum("bi,bj->ij", y, y), False, id="a product inside"),
        pytest.param(lambda _, y: torch.cdist(y, y)[:, :1] + y, False, id="opaque"),
    ],
)
def test_what_a_product_moves_past(function, moves):
    program = capture(Between(function).train(), (torch.randn(4, 4),), {}).program
    kinds = [op.kind for op in program.ops]
    assert kinds.count("linear") == 2
    first = kinds.index("linear")
    assert (kinds[first + 1] == "linear") is moves


def test_attention_with_dropout_is_random():
    def attend(_, y):
        q = y.reshape(1, 2, 2, 4)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).reshape(4, 4)

    found = capture(Between(attend), (torch.randn(4, 4),), {})
    steps = {
        op.kind: step_of(b)
        for op, b in zip(found.program.ops, ops_of(found.graphs[0].trace), strict=True)
    }
    assert (steps["sdpa"].role, steps["sdpa"].is_random) == (Role.HEAVY, True)
    assert not steps["linear"].is_random


def test_another_compilation_of_the_same_graph_is_recognised(inputs):
    class Reads(Block):
        def forward(self, x, cos, sin):
            x = x * 2
            if x.sum().item() > 1e9:
                x = x * 2
            return super().forward(x, cos, sin)

    model = Reads().requires_grad_(False)
    found = capture(model, inputs, {}, front_end="dynamo")
    built = build(model, resolve(found.program, {}), found)
    other = tuple(x + 1 for x in inputs)
    with torch.no_grad():
        torch.testing.assert_close(built(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(built(*other), model(*other), rtol=1e-4, atol=1e-4)
