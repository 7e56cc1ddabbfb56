"""Say what weights of 8 bits and less make of a step of generation of a Llama of random weights.

Run: python -m benchmarks.weight_errors [--layers 4] [--width 512] [--device cpu]
For each format in all weights, and for int4 in some of them with int8 in the others: the relative
error of the logits against the model's own, the share of the samples whose largest logit stays,
and the bytes of the weights as a share of bfloat16's. Both are computed in the model's type:
float32 on a CPU, bfloat16 on CUDA. The shape is that of Llama 3.1 8B but for layers, width and, on
a CPU, the vocabulary.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from thunder_tune.executors.weight_formats import FORMATS, pack, unpacked
from thunder_tune.models.decoding import DecodeStep
from thunder_tune.models.huggingface import SHAPES

Rule = Callable[[str], str]
SAMPLES, CACHED = 8, 128
HEAD_WIDTH = 128


def in_part(*parts: str) -> Rule:
    """Return the rule that gives int4 to weights of some names, and int8 to the others."""
    return lambda name: "int4" if any(p in name for p in parts) else "int8"


def everywhere(form: str) -> Rule:
    """Return the rule that gives all weights one format."""
    return lambda name: form


RULES: dict[str, Rule] = {
    **{form: everywhere(form) for form in FORMATS},
    "int4 in layers": in_part(".layers."),
    "int4 in MLPs": in_part(".mlp."),
    "int4 in gate and up": in_part("gate_proj", "up_proj"),
    "int4 in attention": in_part("self_attn"),
    "int4 in query and key": in_part("q_proj", "k_proj"),
    "int4 in the head": in_part("lm_head"),
    "int4 in the embedding": in_part("embed_tokens"),
}


def model_of(layers: int, width: int, device: str) -> DecodeStep:
    """Return a step of a Llama of a depth and width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = dict(SHAPES["llama_3_1_8b"].settings)
    heads = width // HEAD_WIDTH
    settings |= {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": width * 7 // 2,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "vocab_size": settings["vocab_size"] if device == "cuda" else 4096,
    }
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        llama = LlamaForCausalLM(LlamaConfig(**settings))  # type: ignore[no-untyped-call]
        model = DecodeStep(llama, batch_size=SAMPLES, length=CACHED)
    torch.set_default_dtype(torch.float32)
    return model.eval().requires_grad_(False)


def rounded(model: DecodeStep, originals: dict[str, torch.Tensor], rule: Rule) -> float:
    """Round a model's weights by a rule; return their bytes as a share of bfloat16's."""
    held = whole = 0
    for name, weight in model.named_parameters():
        if weight.ndim != 2:
            continue
        packed = pack(originals[name].to(weight.device), FORMATS[rule(name)])
        weight.copy_(unpacked(packed))
        held, whole = held + packed.nbytes, whole + 2 * weight.numel()
    return held / whole


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    model = model_of(arguments.layers, arguments.width, arguments.device)
    originals = {n: p.to("cpu", copy=True) for n, p in model.named_parameters()}
    vocabulary = originals["model.lm_head.weight"].shape[0]
    ids = torch.randint(vocabulary, (SAMPLES, 1), device=arguments.device)
    expected = model(ids).double()
    print(f"{'weights':24}{'error':>8}{'largest stays':>15}{'bytes':>8}")
    for label, rule in RULES.items():
        share = rounded(model, originals, rule)
        found = model(ids).double()
        error = float((found - expected).norm() / expected.norm())
        stays = float((found.argmax(-1) == expected.argmax(-1)).double().mean())
        print(f"{label:24}{error:8.3f}{stays:15.2f}{share:8.3f}", flush=True)


if __name__ == "__main__":
    main()
