"""Both front ends behind one interface, and what capture makes of a model."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from thunder_tune.compiler import build
from thunder_tune.errors import InputError
from thunder_tune.program import capture
from thunder_tune.testing.small_models import DictModel, GraphBreak, TinyConvNet, TinyTransformer
from thunder_tune.values.plan import resolve

TRANSFORMER_INPUT = (2, 6, 16)


def kinds(program):
    return [program.by_class[c.class_id].kind for c in program.cells]


@pytest.mark.parametrize("front_end", ["dynamo", "thunder.jit"])
@pytest.mark.parametrize("training", [False, True])
def test_front_ends_capture_the_whole_program(front_end, training):
    torch.manual_seed(0)
    model = DictModel()
    x, scale = torch.randn(3, 8), torch.randn(8)
    found = capture(model, (x,), {"scale": scale}, front_end=front_end, training=training)
    assert found.program.front_end == front_end
    assert found.times == 1
    assert [k for k in kinds(found.program) if k != "glue"] == ["linear", "activation", "linear"]
    built = build(model, resolve(found.program, {}), found)
    with torch.set_grad_enabled(training):
        result = built(x, scale=scale)
        expected = model(x, scale=scale)
    assert result["steps"] == 2
    torch.testing.assert_close(result["y"], expected["y"])
    assert built.applied == 1.0
    assert sum(found.graphs[0].static_inputs) == len(list(model.parameters()))
    assert len(found.graphs[0].static_inputs) == len(found.graphs[0].trace.args)


def test_both_front_ends_find_the_same_classes():
    model = DictModel()
    args, kwargs = (torch.randn(3, 8),), {"scale": torch.randn(8)}
    first = capture(model, args, kwargs, front_end="dynamo").program
    second = capture(model, args, kwargs, front_end="thunder.jit").program
    anchors = [{c.id for c in p.classes if c.is_anchor} for p in (first, second)]
    assert anchors[0] == anchors[1]


def test_attention_is_opened_into_linear_sdpa_linear():
    model = TinyTransformer(depth=1).eval()
    program = capture(model, (torch.randn(TRANSFORMER_INPUT),), {}).program
    anchors = [k for k in kinds(program) if k != "glue"]
    assert anchors == [
        "layer_norm", "linear", "sdpa", "linear", "layer_norm", "linear", "activation", "linear",
        "linear",
    ]  # fmt: skip


def test_equal_layers_share_classes():
    model = TinyTransformer(depth=3).eval()
    program = capture(model, (torch.randn(TRANSFORMER_INPUT),), {}).program
    counts = {c.kind: c.count for c in program.classes if c.kind in ("sdpa", "activation")}
    assert counts == {"sdpa": 3, "activation": 3}
    for cell_class in program.classes:
        assert len(cell_class.examples) == cell_class.count
    covered = sorted(i for cell in program.cells for i in cell.ops)
    assert covered == list(range(len(program.ops)))


def test_hashes_see_shapes_and_forget_them():
    model = TinyTransformer().eval()
    programs = [
        capture(model, (torch.randn(b, n, 16),), {}).program for b, n in ((2, 6), (2, 6), (3, 7))
    ]
    assert programs[0].hash == programs[1].hash
    assert programs[0].hash != programs[2].hash
    assert programs[0].loose_hash == programs[2].loose_hash
    assert {c.loose_id for c in programs[0].classes} == {c.loose_id for c in programs[2].classes}


def test_hash_sees_a_constant_and_a_layer_more():
    class Scaled(torch.nn.Module):
        def __init__(self, factor, depth=1):
            super().__init__()
            self.factor = factor
            self.depth = depth

        def forward(self, x):
            for _ in range(self.depth):
                x = torch.tanh(x * self.factor)
            return x

    def hash_of(*args):
        return capture(Scaled(*args), (torch.ones(3),), {}).program.hash

    assert len({hash_of(2.0), hash_of(3.0), hash_of(2.0, 2)}) == 3


def test_hash_is_the_same_in_every_process():
    code = (
        "import torch; from thunder_tune.program import capture; "
        "from thunder_tune.testing.small_models import TinyTransformer as T; "
        "p = capture(T().eval(), (torch.zeros(2, 6, 16),), {}).program; "
        "print(p.hash, *[c.id for c in p.classes])"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_in_place_ops_are_replayed_out_of_place():
    torch.manual_seed(0)
    model = TinyConvNet().eval()
    x = torch.randn(2, 3, 8, 8)
    found = capture(model, (x,), {})
    assert found.program.front_end == "dynamo"
    with torch.no_grad():
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))


def test_graph_breaks_give_several_graphs_of_one_program():
    model = GraphBreak().eval()
    x = torch.randn(4, 8)
    found = capture(model, (x,), {}, front_end="dynamo")
    assert len(found.graphs) >= 2
    assert {op.graph for op in found.program.ops} == set(range(len(found.graphs)))
    with torch.no_grad():
        built = build(model, resolve(found.program, {}), found)
        torch.testing.assert_close(built(x), model(x))
    assert built.applied == 1.0


def test_a_branch_on_a_value_is_never_frozen():
    model = GraphBreak().eval()
    program = capture(model, (torch.randn(4, 8),), {}, front_end="thunder.jit").program
    assert program.front_end == "none"
    assert "reads a tensor's value" in program.reason
    assert capture(model, (torch.randn(4, 8),), {}).program.front_end == "dynamo"


def test_an_op_without_a_symbol_stays_whole():
    class Unusual(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x) + 1

    x = torch.rand(5)
    found = capture(Unusual(), (x,), {})
    assert found.program.front_end == "dynamo"
    with torch.no_grad():
        result = build(Unusual(), resolve(found.program, {}), found)(x)
    torch.testing.assert_close(result, Unusual()(x))


def test_an_uncapturable_model_says_why():
    class Refuses(torch.nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.numpy() + 1)

    found = capture(Refuses(), ("not a tensor",), {})
    assert found.program.front_end == "none"
    assert "dynamo:" in found.program.reason
    assert "thunder.jit:" in found.program.reason


def test_unknown_front_end_is_refused():
    with pytest.raises(InputError, match="unknown front end 'trace': use one of auto, dynamo"):
        capture(DictModel(), (), {}, front_end="trace")
