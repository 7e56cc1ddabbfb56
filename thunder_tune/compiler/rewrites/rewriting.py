"""Put composite symbols in place of the sites that a plan rewrites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace

from thunder_tune.compiler.tagging import op_index
from thunder_tune.executors.float8_mlp import mlp
from thunder_tune.executors.folded_conv import conv_bn
from thunder_tune.executors.gated_linear import gated_linear
from thunder_tune.executors.grouped_attention import grouped_attention
from thunder_tune.executors.linear_add import linear_add
from thunder_tune.executors.linear_gelu import linear_gelu
from thunder_tune.executors.packed_linear import packed_linear
from thunder_tune.executors.packing import active_store
from thunder_tune.executors.written_back import written_back
from thunder_tune.program.kinds import op_name
from thunder_tune.program.patterns import PATTERN_OF, Pattern, Siblings, WrittenBack
from thunder_tune.values.plan import Plan, Rewriting

Composed = tuple[Symbol, tuple[Any, ...], dict[str, Any]]


def _mlp(members: Sequence[BoundSymbol]) -> Composed:
    first, activation, second, *add = members
    x, *up = _arguments(first, "input", "weight", "bias")
    _, *down = _arguments(second, "input", "weight", "bias")
    residual = _other_operand(add[0], second) if add else None
    name = _activation_of(activation)
    form = _form(activation) if name == "gelu" else "none"
    weights, biases = zip(up, down, strict=True)
    return mlp, (x, weights, biases, residual, name, form, active_store()), {}


def _linear_gelu(members: Sequence[BoundSymbol]) -> Composed:
    linear, gelu = members
    x, weight, bias = _arguments(linear, "input", "weight", "bias")
    return linear_gelu, (x, weight, bias), {"approximate": _form(gelu)}


def _form(gelu: BoundSymbol) -> str:
    """Return the form of a GELU, "none" or "tanh"."""
    (approximate,) = _arguments(gelu, "input", "approximate")[1:]
    return str(approximate or "none")


def _linear_add(members: Sequence[BoundSymbol]) -> Composed:
    linear, add = members
    x, weight, bias = _arguments(linear, "input", "weight", "bias")
    given = {} if bias is None else {"bias": bias}
    return linear_add, (x, weight, _other_operand(add, linear)), given


def _packed_linear(members: Sequence[BoundSymbol]) -> Composed:
    linears = [_arguments(linear, "input", "weight", "bias") for linear in members]
    inputs, weights, biases = zip(*linears, strict=True)
    return packed_linear, (inputs[0], weights, biases, active_store()), {}


def _gated_linear(members: Sequence[BoundSymbol]) -> Composed:
    activation = next(m for m in members if _activation_of(m))
    gate = next(m for m in members if m.output.name == activation.args[0].name)
    other = next(m for m in members[:-1] if m is not activation and m is not gate)
    x, *one = _arguments(gate, "input", "weight", "bias")
    _, *two = _arguments(other, "input", "weight", "bias")
    name = _activation_of(activation)
    form = _form(activation) if name == "gelu" else "none"
    weights, biases = zip(one, two, strict=True)
    return gated_linear, (x, weights, biases, name, form, active_store()), {}


def _activation_of(bsym: BoundSymbol) -> str:
    """Return which activation an op is, or ""."""
    name = op_name(bsym).rpartition(".")[2]
    return name if name in ("gelu", "relu", "silu") else ""


def _conv_bn(members: Sequence[BoundSymbol]) -> Composed:
    conv, norm, *others = members
    x, weight, bias, stride, padding, dilation, groups = _arguments(
        conv, "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum")
    _, mean, variance, gamma, beta, training, _, eps = _arguments(norm, *names, "eps")
    residual = None
    if len(others) == 2:
        residual = _other_operand(others[0], norm)
    settings = (
        _pair(stride, 1),
        padding if isinstance(padding, str) else _pair(padding, 0),
        _pair(dilation, 1),
        1 if groups is None else groups,
        bool(training),
        1e-5 if eps is None else eps,
        bool(others),
    )
    state = (mean, variance, gamma, beta)
    return conv_bn, (x, weight, bias, state, residual, *settings, active_store()), {}


def _grouped_attention(members: Sequence[BoundSymbol]) -> Composed:
    attention = members[-1]
    made_by = {m.output.name: m for m in members}
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    query, key, value, mask, dropout, is_causal, scale = _arguments(attention, *names)
    for _ in range(3):  # what is reshaped, expanded, given a dimension
        key, value = made_by[key.name].args[0], made_by[value.name].args[0]
    settings = {"dropout_p": dropout or 0.0, "is_causal": bool(is_causal), "scale": scale}
    return grouped_attention, (query, key, value, mask), settings


def _written_back(members: Sequence[BoundSymbol]) -> Composed:
    copied, _, _ = members
    return written_back, tuple(_arguments(copied, "input", "dim", "index", "source")), {}


REWRITES: Mapping[str, Callable[[Sequence[BoundSymbol]], Composed]] = {
    "mlp_add": _mlp,
    "mlp": _mlp,
    "linear_gelu": _linear_gelu,
    "linear_add": _linear_add,
    "gated_linear": _gated_linear,
    "packed_linear": _packed_linear,
    "conv_bn_add_relu": _conv_bn,
    "conv_bn_relu": _conv_bn,
    "conv_bn": _conv_bn,
    "grouped_attention": _grouped_attention,
    "written_back": _written_back,
}
"""Rewrite -> composite symbol and its arguments, from the ops of a site."""


def composite_of(rewrite_name: str, members: Sequence[BoundSymbol]) -> BoundSymbol:
    """Return the composite of a site: its results are the ops', its subsymbols are the ops."""
    symbol, args, kwargs = REWRITES[rewrite_name](members)
    pattern = PATTERN_OF[rewrite_name]
    output = members[0].output if isinstance(pattern, WrittenBack) else members[-1].output
    if isinstance(pattern, Siblings):
        output = tuple(m.output for m in members)
    composite: BoundSymbol = symbol.bind(*args, **kwargs, output=output, subsymbols=list(members))
    composite.tags = set(members[_of_place(pattern)].tags)
    return composite


def rewrite(trace: TraceCtx, plan: Plan) -> TraceCtx:
    """Apply a plan's rewritings to a tagged trace.

    The composite of a chain stands where its last op stood, nothing but that op having used the
    others; the composite of siblings where the first one stood, as their input is known there, and
    so that of a write, as what is written is used behind it.
    """
    if not plan.rewritings:
        return trace
    site_of = {op: site for site in plan.rewritings for op in site.ops}
    found: dict[int, BoundSymbol] = {}
    for bsym in trace.bound_symbols:
        index = op_index(bsym)
        if index is not None and index in site_of:
            found[index] = bsym
    result = from_trace(trace)
    for bsym in trace.bound_symbols:
        index = op_index(bsym)
        site = site_of.get(index) if index is not None else None
        if site is None or site.ops[0] not in found:  # of another graph
            result.bound_symbols.append(bsym)
        elif index == _place(site):
            members = [found[op] for op in site.ops]
            result.bound_symbols.append(composite_of(site.rewrite, members))
    result.set_provenance(TraceProvenance("Rewrites"))
    return result


def _place(site: Rewriting) -> int:
    return site.ops[_of_place(PATTERN_OF[site.rewrite])]


def _of_place(pattern: Pattern) -> int:
    """Return which op of a match, from either end, its composite stands for."""
    return 0 if isinstance(pattern, (Siblings, WrittenBack)) else -1


def _other_operand(add: BoundSymbol, one: BoundSymbol) -> Any:  # noqa: ANN401 - a tensor
    """Return what an addition adds to an op's result."""
    first, second = add.args[:2]
    return second if first.name == one.output.name else first


def _arguments(bsym: BoundSymbol, *names: str) -> list[Any]:
    """Return an op's arguments in the order of torch's parameters; None where not given."""
    given = dict(zip(names, bsym.args, strict=False))
    return [given.get(name, bsym.kwargs.get(name)) for name in names]


def _pair(value: Any, default: int) -> tuple[int, int]:  # noqa: ANN401 - torch's int or ints
    if value is None:
        return default, default
    first, last = (value[0], value[-1]) if isinstance(value, (list, tuple)) else (value, value)
    return int(first), int(last)
