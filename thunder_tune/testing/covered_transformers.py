"""Families of Hugging Face transformers at tiny sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import nn

from thunder_tune.models.inputs import Inputs
from thunder_tune.testing.covered import Covered, floats, keywords, tokens
from thunder_tune.testing.covered_constructs import mask

VOCABULARY = 61
_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
_DECODER = {
    **_ENCODER,
    "num_key_value_heads": 1,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEAD = {"head_dim": 16}
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 1,
    "num_heads": 2,
    "use_cache": False,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "use_cache": False,
    "attention_dropout": 0.0,
    "dropout": 0.0,
}
_OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

Maker = Callable[[torch.Generator], Inputs]
_IDS: Maker = keywords(input_ids=tokens(VOCABULARY))
_MASKED: Maker = keywords(input_ids=tokens(VOCABULARY), attention_mask=lambda _: mask())
_LABELLED: Maker = keywords(input_ids=tokens(VOCABULARY), labels=tokens(VOCABULARY))
_IMAGES: Maker = keywords(pixel_values=floats(2, 3, 32, 32))


def _clip() -> nn.Module:
    text = {**_ENCODER, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    return _model(
        "CLIPModel",
        "CLIPConfig",
        {"text_config": text, "vision_config": _VISION, "projection_dim": 16},
    )


def _pairs(generator: torch.Generator) -> Inputs:
    made = _MASKED(generator)
    return Inputs((), {**made.kwargs, "pixel_values": floats(2, 3, 32, 32)(generator)})


def _model(name: str, config: str, settings: Mapping[str, Any]) -> nn.Module:
    made: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return made


def _row(
    name: str, model: str, config: str, settings: Mapping[str, Any], inputs: Maker
) -> Covered:
    return Covered(
        name=name,
        family="transformers",
        make=lambda: _model(model, config, settings),
        inputs=inputs,
    )


MODELS = (
    _row("bert", "BertModel", "BertConfig", {**_ENCODER, **_OFF}, _MASKED),
    _row("bert_mlm", "BertForMaskedLM", "BertConfig", {**_ENCODER, **_OFF}, _LABELLED),
    _row("roberta", "RobertaModel", "RobertaConfig", {**_ENCODER, **_OFF}, _MASKED),
    _row(
        "distilbert",
        "DistilBertModel",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 48,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        _MASKED,
    ),
    _row(
        "albert",
        "AlbertModel",
        "AlbertConfig",
        {**_ENCODER, **_OFF, "embedding_size": 16},
        _MASKED,
    ),
    _row(
        "electra",
        "ElectraModel",
        "ElectraConfig",
        {**_ENCODER, **_OFF, "embedding_size": 16},
        _MASKED,
    ),
    _row("hf_vit", "ViTForImageClassification", "ViTConfig", {**_VISION, **_OFF}, _IMAGES),
    _row("dinov2", "Dinov2Model", "Dinov2Config", {**_VISION, **_OFF}, _IMAGES),
    Covered(name="clip", family="transformers", make=_clip, inputs=_pairs),
    _row(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        _T5,
        keywords(
            input_ids=tokens(VOCABULARY),
            attention_mask=lambda _: mask(),
            labels=tokens(VOCABULARY),
        ),
    ),
    _row(
        "bart",
        "BartModel",
        "BartConfig",
        _BART,
        keywords(input_ids=tokens(VOCABULARY), decoder_input_ids=tokens(VOCABULARY)),
    ),
    _row(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "use_cache": False,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
        _LABELLED,
    ),
    _row(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        {
            **_DECODER,
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        _MASKED,
    ),
    _row("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _DECODER, _IDS),
    _row("llama", "LlamaForCausalLM", "LlamaConfig", {**_DECODER, **_HEAD}, _LABELLED),
    _row("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _DECODER, _IDS),
    _row("qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, **_HEAD}, _MASKED),
    _row("mistral", "MistralForCausalLM", "MistralConfig", {**_DECODER, **_HEAD}, _IDS),
    _row("phi", "PhiForCausalLM", "PhiConfig", _DECODER, _IDS),
    _row("phi3", "Phi3ForCausalLM", "Phi3Config", _DECODER, _IDS),
    _row("gemma", "GemmaForCausalLM", "GemmaConfig", {**_DECODER, **_HEAD}, _IDS),
    _row(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**_DECODER, **_HEAD, "query_pre_attn_scalar": 16},
        _IDS,
    ),
    _row(
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_DECODER, **_HEAD, "num_local_experts": 3, "num_experts_per_tok": 2},
        _IDS,
    ),
)
"""Every model of this module."""
