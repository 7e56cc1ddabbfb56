"""Architectures of Hugging Face transformers, at their published sizes, with random weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from thunder_tune.errors import MissingDependency
from thunder_tune.models.family import LoadedModel, ModelInfo
from thunder_tune.models.inputs import Inputs
from thunder_tune.models.tokens import padding_mask, token_ids
from thunder_tune.models.weights import seeded
from thunder_tune.values.source import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A published configuration: class names in transformers, and what differs from defaults.

    Attributes:
        model: Class of the model.
        config: Class of its configuration.
        description: One sentence.
        settings: Of the configuration.
        masked: Whether it gets a padding mask.
        decodes: Whether it is run for one token beside a full cache.
    """

    model: str
    config: str
    description: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False
    decodes: bool = False


_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_3 = {
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "use_cache": False,
}
# https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
_LLAMA_3_2_1B = {
    **_LLAMA_3,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "rope_parameters": {**_ROPE, "factor": 32.0},
    "tie_word_embeddings": True,
}
# https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json
_LLAMA_3_1_8B = {
    **_LLAMA_3,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "head_dim": 128,
    "rope_parameters": {**_ROPE, "factor": 8.0},
    "tie_word_embeddings": False,
}

SHAPES = {
    # https://huggingface.co/google-bert/bert-large-uncased/blob/main/config.json
    "bert_large": _Shape(
        model="BertModel",
        config="BertConfig",
        description="encoder, 340 M parameters: token ids and padding mask",
        masked=True,
        settings={
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "vocab_size": 30522,
        },
    ),
    # https://huggingface.co/openai-community/gpt2/blob/main/config.json
    "gpt2": _Shape(
        model="GPT2LMHeadModel",
        config="GPT2Config",
        description="causal language model, 124 M parameters: token ids",
        settings={"use_cache": False},
    ),
    "llama_3_2_1b": _Shape(
        model="LlamaForCausalLM",
        config="LlamaConfig",
        description="causal language model, 1.2 G parameters: token ids (prefill)",
        settings=_LLAMA_3_2_1B,
    ),
    "llama_3_2_1b_decode": _Shape(
        model="LlamaForCausalLM",
        config="LlamaConfig",
        description="the same, one token beside a cache of the sequence length",
        settings=_LLAMA_3_2_1B,
        decodes=True,
    ),
    "llama_3_1_8b": _Shape(
        model="LlamaForCausalLM",
        config="LlamaConfig",
        description="causal language model, 8 G parameters, DeepSeek-R1-Distill-Llama-8B's shape "
        "too: token ids (prefill)",
        settings=_LLAMA_3_1_8B,
    ),
    "llama_3_1_8b_decode": _Shape(
        model="LlamaForCausalLM",
        config="LlamaConfig",
        description="the same, one token beside a cache of the sequence length",
        settings=_LLAMA_3_1_8B,
        decodes=True,
    ),
    # https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/config.json
    "qwen3_0_6b": _Shape(
        model="Qwen3ForCausalLM",
        config="Qwen3Config",
        description="causal language model, 0.6 G parameters: token ids (prefill)",
        settings={
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "tie_word_embeddings": True,
            "use_cache": False,
        },
    ),
}


def infos() -> tuple[ModelInfo, ...]:
    """List the shapes; transformers itself is needed only to build one."""
    return tuple(
        ModelInfo(name=name, family="huggingface", description=shape.description)
        for name, shape in SHAPES.items()
    )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def import_transformers(model: str) -> ModuleType:
    """Return the package; raise `MissingDependency`, naming the model, where it is missing."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MissingDependency(
            f"model {model!r} needs transformers: pip install 'thunder-tune[hf]' ({error})"
        ) from error


def make(source: ModelSource) -> LoadedModel:
    """Build a model on its device and in its dtype, so that no float32 copy exists.

    Raises:
        MissingDependency: transformers is not installed.
    """
    transformers = import_transformers(source.name)
    shape = SHAPES[source.name]
    config = getattr(transformers, shape.config)(**shape.settings)
    # The class's own buffers that must stay in float32 (rotary frequencies) ask for it.
    with (
        seeded(source.seed),
        _default_dtype(getattr(torch, source.dtype)),
        torch.device(source.device),
    ):
        model = getattr(transformers, shape.model)(config)
        if shape.decodes:
            from thunder_tune.models.decoding import DecodeStep

            model = DecodeStep(model, batch_size=source.batch_size, length=source.seq_len)
    read = replace(source, seq_len=1) if shape.decodes else source

    def make_inputs(seed: int) -> Inputs:
        arguments = {"input_ids": token_ids(read, config.vocab_size, seed)}
        if shape.masked:
            arguments["attention_mask"] = padding_mask(source, seed)
        return Inputs((), arguments)

    return LoadedModel(model, make_inputs)
