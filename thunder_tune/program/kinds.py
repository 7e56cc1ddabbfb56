"""Kinds of ops: which are anchors, with executors of their own, and which only move data."""

from __future__ import annotations

from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol

ANCHORS: dict[str, tuple[str, ...]] = {
    "linear": ("torch.nn.functional.linear",),
    "matmul": ("torch.matmul", "torch.bmm", "torch.baddbmm", "torch.addmm"),
    "conv": (
        "torch.nn.functional.conv1d",
        "torch.nn.functional.conv2d",
        "torch.nn.functional.conv3d",
    ),
    "sdpa": ("torch.nn.functional.scaled_dot_product_attention",),
    "layer_norm": ("torch.layer_norm", "torch.nn.functional.layer_norm"),
    "rms_norm": ("torch.rms_norm", "torch.nn.functional.rms_norm"),
    "batch_norm": ("torch.batch_norm", "torch.nn.functional.batch_norm"),
    "group_norm": ("torch.group_norm", "torch.nn.functional.group_norm"),
    "activation": (
        "torch.nn.functional.gelu",
        "torch.nn.functional.silu",
        "torch.relu",
        "torch.nn.functional.relu",
        "torch.nn.functional.relu6",
        "torch.nn.functional.hardswish",
    ),
    "softmax": ("torch.softmax", "torch.nn.functional.softmax"),
    "embedding": ("torch.nn.functional.embedding",),
    "cross_entropy": ("torch.nn.functional.cross_entropy",),
}
"""Anchor kind -> ids of Thunder's symbols."""

_KIND_OF = {name: kind for kind, names in ANCHORS.items() for name in names}

OPAQUE = "opaque"
OPAQUE_PREFIX = "opaque_"
"""Of the names of torch calls that have no Thunder symbol."""

_MOVES = frozenset(
    {
        PrimIDs.RESHAPE,
        PrimIDs.TRANSPOSE,
        PrimIDs.SLICE,
        PrimIDs.SQUEEZE,
        PrimIDs.BROADCAST_IN_DIM,
        PrimIDs.SHALLOW_COPY,
        PrimIDs.STRIDE_ORDER,
        PrimIDs.SHAPE,  # which indexing asks for on its way
    }
)

STRUCTURAL = frozenset(
    {
        PrimIDs.UNPACK_TRIVIAL,
        PrimIDs.UNPACK_SEQUENCE,
        PrimIDs.UNPACK_EMPTY_DICT,
        PrimIDs.UNPACK_KEY,
        PrimIDs.RETURN,
        PrimIDs.DEL,
        PrimIDs.COMMENT,
    }
)
"""Bound symbols that carry the program rather than compute."""


def kind_of(bsym: BoundSymbol) -> str:
    """Return the anchor kind of an op, "opaque", or the last part of its name."""
    name = op_name(bsym)
    if name.startswith(OPAQUE_PREFIX):
        return OPAQUE
    return _KIND_OF.get(name, name.rsplit(".", 1)[-1].lower())


def is_anchor_kind(kind: str) -> bool:
    """Whether ops of this kind are cells of their own: what no fuser takes is one too."""
    return kind in ANCHORS or kind == OPAQUE


def op_name(bsym: BoundSymbol) -> str:
    """Return the id of the op's symbol as text, for example "torch.nn.functional.linear"."""
    identity = bsym.sym.id if bsym.sym.id is not None else bsym.sym.name
    name = identity if isinstance(identity, str) else getattr(identity, "name", str(identity))
    return str(name)


def is_view(bsym: BoundSymbol) -> bool:
    """Whether an op only moves or renames data: every prim below it does."""
    if bsym.subsymbols:
        return all(is_view(sub) for sub in bsym.subsymbols)
    if bsym.sym.is_prim:
        return bsym.sym.id in _MOVES
    inputs = {p.name for p in bsym.flat_proxy_args}
    return all(p.name in inputs for p in bsym.flat_proxy_outs)
