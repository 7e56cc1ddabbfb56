from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from thunder_tune.compiler import build
from thunder_tune.errors import MissingDependency
from thunder_tune.models import huggingface, load
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve
from thunder_tune.values.source import ModelSource

TINY = {
    "bert_large": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
    "llama_3_2_1b": {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 300},
    "llama_3_2_1b_decode": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300},
    "llama_3_1_8b": {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 300},
    "llama_3_1_8b_decode": {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 300},
    "qwen3_0_6b": {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 300},
}


@pytest.fixture
def tiny(monkeypatch):
    for name, smaller in TINY.items():
        shape = huggingface.SHAPES[name]
        settings = {**shape.settings, "intermediate_size": 64, **smaller}
        monkeypatch.setitem(
            huggingface.SHAPES, name, dataclasses.replace(shape, settings=settings)
        )


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY)
def test_each_shape_runs_in_its_dtype_and_varies(name: str):
    loaded = load(ModelSource(name=name, dtype="bfloat16", batch_size=2, seq_len=8))
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    first, second = (loaded.model(**loaded.make_inputs(seed).kwargs)[0].float() for seed in (0, 1))
    assert torch.isfinite(first).all()
    assert (first - second).norm() > 0.01 * first.norm()


@pytest.mark.usefixtures("tiny")
def test_rotary_frequencies_stay_in_float32():
    model = load(ModelSource(name="llama_3_2_1b", dtype="bfloat16", seq_len=8)).model
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.usefixtures("tiny")
def test_a_causal_model_returns_no_cache():
    loaded = load(ModelSource(name="llama_3_2_1b", seq_len=8))
    assert loaded.model(**loaded.make_inputs(0).kwargs).past_key_values is None


@pytest.mark.usefixtures("tiny")
def test_bert_gets_a_mask_with_real_padding():
    inputs = load(ModelSource(name="bert_large", batch_size=16, seq_len=32)).make_inputs(0)
    mask = inputs.kwargs["attention_mask"]
    lengths = mask.sum(dim=1)
    assert lengths[0] == 32
    assert lengths.min() >= 16
    assert lengths.min() < 32
    assert torch.equal(mask, mask.sort(dim=1, descending=True).values)


@pytest.mark.usefixtures("tiny")
def test_training_has_no_dropout():
    model = load(ModelSource(name="bert_large", mode="train", seq_len=8)).model
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}


def test_the_default_dtype_is_restored():
    load(ModelSource(name="mlp", dtype="bfloat16"))
    assert torch.get_default_dtype() == torch.float32


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r"'gpt2' needs transformers.*thunder-tune\[hf\]"):
        load(ModelSource(name="gpt2"))


@pytest.mark.usefixtures("tiny")
class TestDecoding:
    SOURCE = ModelSource(name="llama_3_2_1b_decode", batch_size=2, seq_len=12)

    def test_a_step_is_what_the_model_makes_of_the_whole_sequence(self):
        loaded = load(self.SOURCE)
        step = loaded.model
        ids = torch.randint(300, (2, 12), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            cache = step.model(input_ids=ids[:, :-1], use_cache=True).past_key_values
            for i, layer in enumerate(cache.layers):
                step.get_buffer(f"keys_{i}")[:, :, :-1] = layer.keys
                step.get_buffer(f"values_{i}")[:, :, :-1] = layer.values
            expected = step.model(input_ids=ids).logits[:, -1:]
            torch.testing.assert_close(step(ids[:, -1:]), expected)

    def test_equal_calls_give_equal_results(self):
        loaded = load(self.SOURCE)
        first, other = (loaded.make_inputs(seed).kwargs for seed in (0, 1))
        with torch.no_grad():
            before = loaded.model(**first)
            assert not torch.equal(loaded.model(**other), before)
            assert torch.equal(loaded.model(**first), before)

    def test_what_it_reads_is_one_token_and_its_cache_is_of_its_type(self):
        loaded = load(dataclasses.replace(self.SOURCE, dtype="bfloat16"))
        assert loaded.make_inputs(0).kwargs["input_ids"].shape == (2, 1)
        assert {b.dtype for n, b in loaded.model.named_buffers() if "keys" in n} == {
            torch.bfloat16
        }
        assert loaded.model.get_buffer("keys_0").shape == (2, 8, 12, 64)

    def test_its_program_writes_where_the_cache_lies(self):
        loaded = load(self.SOURCE)
        inputs = loaded.make_inputs(0).kwargs
        with torch.no_grad():
            expected = loaded.model(**inputs)
            found = capture(loaded.model, (), inputs)
            assert found.program.front_end == "dynamo"
            sites = [s for s in found.program.sites if s.rewrite == "written_back"]
            assert len(sites) == 4
            choices = {f"rewrite:{s.class_id}": "in_place" for s in sites}
            built = build(loaded.model, resolve(found.program, choices), found)
            torch.testing.assert_close(built(**inputs), expected)
        assert built.applied == 1.0
