from __future__ import annotations

import pytest
import torch

from thunder_tune.errors import InputError, ModelError, NotFoundError
from thunder_tune.models import load
from thunder_tune.values.source import ModelSource

GOOD = """
import torch

def factory():
    return torch.nn.Linear(4, 2)

def inputs(batch_size):
    return torch.randn(batch_size, 4)
"""


def source(tmp_path, module: str, **changes) -> ModelSource:
    names = {"name": f"{module}:factory", "inputs": f"{module}:inputs"}
    return ModelSource(**{**names, "search_path": (str(tmp_path),), **changes})


def test_factory_and_inputs_give_a_model_that_runs(tmp_path, write_module):
    loaded = load(source(tmp_path, write_module(GOOD), batch_size=3))
    inputs = loaded.make_inputs(0)
    assert loaded.model(*inputs.args, **inputs.kwargs).shape == (3, 2)
    assert not loaded.model.training


def test_the_factory_is_seeded(tmp_path, write_module):
    module = write_module(GOOD)
    first, again, other = (
        load(source(tmp_path, module, seed=seed)).model.weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_inputs_without_a_seed_parameter_follow_the_seed(tmp_path, write_module):
    make_inputs = load(source(tmp_path, write_module(GOOD))).make_inputs
    first, again, other = (make_inputs(seed).args[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_factory_gets_the_options_it_names(tmp_path, write_module):
    module = write_module("""
        import torch

        def factory(seq_len, dtype, device):
            return torch.nn.Embedding(10, seq_len, dtype=dtype, device=device)

        def inputs(seed, batch_size=7, other=1):
            return torch.full((batch_size,), seed)
    """)
    loaded = load(source(tmp_path, module, seq_len=5, dtype="bfloat16"))
    assert loaded.model.weight.shape == (10, 5)
    assert loaded.model.weight.dtype == torch.bfloat16
    assert loaded.make_inputs(3).args[0].tolist() == [3]


@pytest.mark.parametrize(
    ("value", "args", "kwargs"),
    [
        ("t", 1, set()),
        ("(t, t)", 2, set()),
        ("[t, 3]", 2, set()),
        ("{'x': t}", 0, {"x"}),
        ("((t,), {'y': t})", 1, {"y"}),
        ("([t, t], {})", 2, set()),
        ("(t, {'mask': t})", 2, set()),
    ],
)
def test_the_forms_of_inputs(tmp_path, write_module, value, args, kwargs):
    module = write_module(f"{GOOD}\ndef inputs():\n    t = torch.ones(1)\n    return {value}\n")
    inputs = load(source(tmp_path, module)).make_inputs(0)
    assert len(inputs.args) == args
    assert set(inputs.kwargs) == kwargs


def test_floating_inputs_take_the_dtype_and_integers_stay(tmp_path, write_module):
    module = write_module(
        f"{GOOD}\ndef inputs():\n    return torch.ones(2), torch.ones(2, dtype=torch.int32)\n"
    )
    loaded = load(source(tmp_path, module, dtype="bfloat16"))
    assert [t.dtype for t in loaded.make_inputs(0).args] == [torch.bfloat16, torch.int32]
    assert loaded.notes == ("parameters were converted from float32 to bfloat16",)


def test_own_inputs_for_a_built_in_model(tmp_path, write_module):
    module = write_module("import torch\ndef inputs():\n    return torch.ones(5, 256)\n")
    loaded = load(source(tmp_path, module, name="mlp"))
    assert loaded.make_inputs(0).args[0].shape == (5, 256)


def test_training_keeps_the_users_frozen_parameters(tmp_path, write_module):
    module = write_module("""
        import torch

        def factory():
            layer = torch.nn.Linear(4, 2)
            layer.bias.requires_grad_(False)
            return layer

        def inputs():
            return torch.ones(1, 4)
    """)
    model = load(source(tmp_path, module, mode="train")).model
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == [True, False]


def test_inputs_on_another_device_name_both(tmp_path, write_module):
    module = write_module(f"{GOOD}\ndef inputs():\n    return torch.ones(1, 4, device='meta')\n")
    with pytest.raises(ModelError, match=r"made inputs on meta, the model is on cpu"):
        load(source(tmp_path, module)).make_inputs(0)


def test_a_factory_that_raises_names_file_and_line(tmp_path, write_module):
    module = write_module("""
        def build():
            raise KeyError("no such checkpoint")

        def factory():
            return build()

        inputs = factory
    """)
    with pytest.raises(ModelError, match=rf"KeyError: 'no such checkpoint' \(.*{module}\.py:3\)"):
        load(source(tmp_path, module))


def test_an_error_inside_pytorch_names_the_users_line(tmp_path, write_module):
    module = write_module("""
        import torch

        def factory():
            return torch.nn.Linear(-4, 2)

        inputs = factory
    """)
    with pytest.raises(ModelError, match=rf"RuntimeError: .*\(.*{module}\.py:5\)"):
        load(source(tmp_path, module))


def test_inputs_that_raise_name_file_and_line(tmp_path, write_module):
    module = write_module(f"{GOOD}\ndef inputs():\n    raise OSError('no images')\n")
    with pytest.raises(
        ModelError, match=rf"inputs' raised OSError: no images \(.*{module}.py:\d+"
    ):
        load(source(tmp_path, module)).make_inputs(0)


def test_weights_that_do_not_fit_are_told_with_what_is_missing(tmp_path, write_module):
    model = "torch.nn.Linear(4, 2)"
    module = write_module(GOOD.replace(model, f"{model}.load_state_dict({{}})"))
    with pytest.raises(ModelError, match=r"state_dict for Linear: Missing key.*weight.*\.py:\d+"):
        load(source(tmp_path, module))


@pytest.mark.parametrize("text", ["1 +", "raise RuntimeError('broken')", "import absent_package"])
def test_a_module_that_cannot_be_imported(tmp_path, write_module, text):
    module = write_module(f"\n{text}\n")
    with pytest.raises(ModelError, match=rf"raised \w+Error: .*{module}\.py:2\)"):
        load(source(tmp_path, module))


def test_a_module_that_exits_does_not_end_the_program(tmp_path, write_module):
    module = write_module("import sys\nsys.exit(3)\n")
    with pytest.raises(ModelError, match=r"raised SystemExit: 3"):
        load(source(tmp_path, module))


def test_a_factory_that_returns_no_module(tmp_path, write_module):
    module = write_module(f"{GOOD}\ndef factory():\n    return 5\n")
    with pytest.raises(ModelError, match=r"returned int, it must return a torch.nn.Module"):
        load(source(tmp_path, module))


@pytest.mark.parametrize("value", ["5", "None", "(1, 2)", "{}"])
def test_inputs_without_a_tensor(tmp_path, write_module, value):
    module = write_module(f"{GOOD}\ndef inputs():\n    return {value}\n")
    with pytest.raises(ModelError, match=r"returned \w+ without a tensor"):
        load(source(tmp_path, module)).make_inputs(0)


def test_a_missing_module(tmp_path):
    with pytest.raises(NotFoundError, match=r"no module 'nowhere' in"):
        load(source(tmp_path, "nowhere"))


def test_a_missing_factory_lists_close_names(tmp_path, write_module):
    module = write_module(GOOD)
    with pytest.raises(NotFoundError, match=r"has no 'factor': did you mean factory"):
        load(source(tmp_path, module, name=f"{module}:factor"))


@pytest.mark.parametrize("reference", [":factory", "module:", ":"])
def test_half_a_reference(tmp_path, reference):
    with pytest.raises(InputError, match=r"is no factory: write package.module:factory"):
        load(source(tmp_path, "m", name=reference))


def test_a_factory_needs_inputs(tmp_path, write_module):
    module = write_module(GOOD)
    with pytest.raises(InputError, match=r"needs --inputs package.module:make_inputs"):
        load(source(tmp_path, module, inputs=None))


def test_a_factory_with_an_unknown_argument(tmp_path, write_module):
    module = write_module(f"{GOOD}\ndef factory(width):\n    pass\n")
    with pytest.raises(InputError, match=r"needs an argument 'width': give it a default"):
        load(source(tmp_path, module))


@pytest.mark.parametrize("value", ["torch.nn.Linear(4, 2)", "7"])
def test_a_value_is_no_factory(tmp_path, write_module, value):
    module = write_module(f"{GOOD}\nfactory = {value}\n")
    with pytest.raises(InputError, match=r"name a function that returns a new one"):
        load(source(tmp_path, module))
