from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from thunder_tune.errors import InputError, MissingDependency, NotFoundError
from thunder_tune.models import check_names, load
from thunder_tune.models.inputs import SCALES
from thunder_tune.values.source import ModelSource

SMALL = ["mlp", "nanogpt", "resnet18", "mobilenet_v3_small", "squeezenet1_0"]


def output(model: nn.Module, inputs) -> torch.Tensor:
    with torch.no_grad():
        result = model(*inputs.args, **inputs.kwargs)
    return result if isinstance(result, torch.Tensor) else result[0]


@pytest.mark.parametrize("name", SMALL)
def test_the_output_varies_with_the_input_and_between_samples(name: str):
    loaded = load(ModelSource(name=name, batch_size=2, seq_len=16))
    first, second = (output(loaded.model, loaded.make_inputs(seed)) for seed in (0, 1))
    assert torch.isfinite(first).all()
    assert (first - second).norm() > 0.01 * first.norm()
    assert first.std() > 1e-3


@pytest.mark.parametrize("name", SMALL)
def test_no_parameter_repeats_one_value(name: str):
    model = load(ModelSource(name=name, seq_len=16)).model
    repeated = [
        n for n, p in model.named_parameters() if p.numel() > 1 and p.unique().numel() == 1
    ]
    assert repeated == []


def test_a_layer_scale_no_longer_hides_its_block():
    model = load(ModelSource(name="convnext_tiny")).model
    scales = [p for n, p in model.named_parameters() if n.endswith("layer_scale")]
    assert len(scales) == 18
    assert all(scale.abs().min() >= 0.5 for scale in scales)


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_batch_norms_keep_valid_buffers(mode):
    model = load(ModelSource(name="mobilenet_v3_small", mode=mode)).model
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    assert norms
    for norm in norms:
        assert (norm.running_var > 0).all()
        assert norm.num_batches_tracked.dtype == torch.int64
        assert norm.momentum == 0.01
        assert norm.training == (mode == "train")


def test_one_seed_gives_the_same_weights_and_another_does_not():
    source = ModelSource(name="resnet18", seed=3)
    first, again = load(source).model.state_dict(), load(source).model.state_dict()
    other = load(dataclasses.replace(source, seed=4)).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.bias"], other["fc.bias"])


def test_loading_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    load(ModelSource(name="mlp"))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["mlp", "nanogpt", "resnet18"])
def test_inputs_follow_the_seed(name: str):
    make_inputs = load(ModelSource(name=name, seq_len=16)).make_inputs
    same, again, other = (make_inputs(seed).tensors()[0] for seed in (5, 5, 6))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (3, 256)),
        ("nanogpt", (3, 16)),
        ("squeezenet1_0", (3, 3, 224, 224)),
        ("efficientnet_b1", (3, 3, 240, 240)),
    ],
)
def test_inputs_have_the_asked_batch_and_the_models_own_size(name: str, shape):
    loaded = load(ModelSource(name=name, batch_size=3, seq_len=16))
    assert loaded.make_inputs(0).tensors()[0].shape == shape


def test_inception_takes_its_own_size_and_returns_one_tensor_in_inference():
    loaded = load(ModelSource(name="inception_v3"))
    inputs = loaded.make_inputs(0)
    assert inputs.args[0].shape == (1, 3, 299, 299)
    with torch.no_grad():
        assert loaded.model(*inputs.args).shape == (1, 1000)


def test_token_ids_cover_the_vocabulary():
    ids = load(ModelSource(name="nanogpt", batch_size=64)).make_inputs(0).args[0]
    assert ids.dtype == torch.int64
    assert ids.min() == 0
    assert ids.max() == 511
    assert abs(ids.double().mean().item() - 255.5) < 10


def test_dtype_reaches_parameters_and_inputs():
    loaded = load(ModelSource(name="mlp", dtype="bfloat16"))
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.make_inputs(0).args[0].dtype == torch.bfloat16


def test_inference_asks_for_no_gradient_and_evaluates():
    model = load(ModelSource(name="resnet18")).model
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(m.training for m in model.modules())


def test_training_keeps_gradients_and_switches_dropout_off():
    loaded = load(ModelSource(name="alexnet", mode="train"))
    assert all(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.training
    assert {m.p for m in loaded.model.modules() if isinstance(m, nn.Dropout)} == {0.0}
    assert any("dropout is off" in note for note in loaded.notes)


def test_random_weights_are_said_to_be_random():
    assert load(ModelSource(name="mlp")).notes == ("weights are random",)


@pytest.mark.parametrize("name", ["mlp", "squeezenet1_0"])
def test_inputs_of_a_judgement_have_different_scales(name):
    make_inputs = load(ModelSource(name=name, batch_size=4)).make_inputs
    sizes = [float(make_inputs(7_000 + k).args[0].std()) for k in range(4)]
    assert sizes == pytest.approx(SCALES, rel=0.1)
    assert len(set(SCALES)) == 4


def test_a_missing_device_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"'cuda': PyTorch sees no CUDA device.*--device cpu"):
        load(ModelSource(name="mlp", device="cuda"))


def test_checking_names_builds_nothing_and_knows_the_family(monkeypatch):
    monkeypatch.setattr(torch.nn.Linear, "__init__", None)
    info = check_names(ModelSource(name="vit_h_14"))
    assert (info.name, info.family) == ("vit_h_14", "torchvision")


def test_checking_names_finds_what_load_would():
    with pytest.raises(NotFoundError, match=r"unknown model 'vit'"):
        check_names(ModelSource(name="vit"))
    with pytest.raises(NotFoundError, match=r"no module 'absent_module'"):
        check_names(ModelSource(name="mlp", inputs="absent_module:f"))
    with pytest.raises(NotFoundError, match=r"no module 'absent_module'"):
        check_names(ModelSource(name="absent_module:f", inputs="absent_module:g"))


def test_checking_names_finds_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r"thunder-tune\[hf\]"):
        check_names(ModelSource(name="gpt2"))
