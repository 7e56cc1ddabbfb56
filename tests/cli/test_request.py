from __future__ import annotations

import os

import pytest
import torch

from thunder_tune.cli.request import (
    BudgetFlags,
    ModelFlags,
    device_of,
    new_spec,
    resumed_spec,
    setting_of,
    study_name,
)
from thunder_tune.errors import InputError
from thunder_tune.values.source import ModelSource


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize(
    ("model", "batch_size"), [("vit_b_16", 128), ("resnet50", 128), ("gpt2", 1), ("nanogpt", 1)]
)
def test_defaults_on_cuda(model, batch_size):
    source = setting_of(ModelFlags(model=model)).source
    assert (source.device, source.dtype, source.seq_len) == ("cuda", "bfloat16", 2048)
    assert source.batch_size == batch_size


@pytest.mark.usefixtures("on_cpu")
def test_defaults_on_a_cpu():
    setting = setting_of(ModelFlags(model="resnet18"))
    source = setting.source
    assert (source.device, source.dtype, source.seq_len) == ("cpu", "float32", 128)
    assert (source.batch_size, source.seed, source.mode) == (1, 0, "inference")
    assert source.search_path == ()
    assert (setting.policies, setting.preset) == (("same",), "inference")


@pytest.mark.usefixtures("on_cpu")
def test_training_has_its_own_preset():
    assert setting_of(ModelFlags(model="mlp", mode="train")).preset == "training"
    assert setting_of(ModelFlags(model="mlp", mode="train", preset="quick")).preset == "quick"


@pytest.mark.usefixtures("on_cpu")
def test_cuda_must_be_there():
    with pytest.raises(InputError, match=r"sees no CUDA device here: use --device cpu"):
        device_of("cuda")


def test_own_code_is_looked_for_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_code_here.py").write_text("def f():\n    pass\n")
    flags = ModelFlags(model="own_code_here:f", inputs="own_code_here:f", device="cpu")
    assert setting_of(flags).source.search_path == (os.getcwd(),)


def test_budget_and_name():
    flags = ModelFlags(model="mlp", device="cpu", seed=7)
    budget = BudgetFlags(trials=5, time_budget="2m", workers=2)
    spec = new_spec("mine", flags, budget)
    assert (spec.name, spec.trials, spec.time_budget_s) == ("mine", 5, 120)
    assert (spec.seed, spec.setting.source.seed, spec.workers) == (7, 7, 2)
    assert spec.setting.log_folder.endswith("mine")


def test_a_name_made_up_says_what_is_tuned():
    name = study_name(ModelSource(name="my.models:make", dtype="bfloat16", batch_size=4))
    assert name.startswith("my.models.make-cpu-bfloat16-b4-")


def test_several_policies_and_a_metric():
    flags = ModelFlags(
        model="mlp", device="cpu", policies=("same", "low"), metric="math:fsum", metric_min=0.5
    )
    setting = setting_of(flags)
    assert setting.policies == ("same", "low")
    assert setting.metric == ("math:fsum", 0.5)


def test_resuming_keeps_what_is_not_given():
    stored = new_spec("s", ModelFlags(model="mlp", device="cpu"), BudgetFlags(trials=5))
    again = resumed_spec(stored, ModelFlags(), BudgetFlags(time_budget="90"))
    assert (again.trials, again.time_budget_s) == (5, 90)
    assert again.setting == stored.setting


def test_resuming_names_the_flags_that_do_not_fit():
    stored = new_spec("s", ModelFlags(model="mlp", device="cpu"), BudgetFlags())
    with pytest.raises(InputError, match=r"--batch-size, --policy without --model: study 's'"):
        resumed_spec(stored, ModelFlags(batch_size=2, policies=("low",)), BudgetFlags())
