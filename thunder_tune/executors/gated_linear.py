"""The two linears of a gated MLP, and the product of one with the activation of the other.

SiLU (SwiGLU), GELU (GeGLU) or ReLU (ReGLU) of the gate. A kernel that knows both halves of the
product in registers writes what they make of one another, and never the halves.
"""

from __future__ import annotations

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

_ACTIVATIONS = {"silu": ltorch.silu, "relu": ltorch.relu}


def composite(
    x: TensorProxy,
    weights: tuple[TensorProxy, TensorProxy],
    biases: tuple[TensorProxy | None, TensorProxy | None],
    activation: str,
    approximate: str,
    store: int,
) -> TensorProxy:
    """Compute activation(x @ gate.T + its bias) * (x @ other.T + its bias), op by op.

    Args:
        x: (..., in features).
        weights: Of the gate and of the other linear, (out features, in features) each.
        biases: (out features,) each, or None.
        activation: "silu", "gelu" or "relu".
        approximate: Form of a GELU, "none" or "tanh".
        store: Number of the candidate's packed weights.

    Returns:
        (..., out features).
    """
    gate, other = (ltorch.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
    if activation == "gelu":
        return ltorch.gelu(gate, approximate=approximate) * other
    return _ACTIVATIONS[activation](gate) * other


gated_linear = Symbol("gated_linear", meta=composite, id="thunder_tune.gated_linear")
"""The composite that a rewrite puts in place of a gated MLP's first half."""
