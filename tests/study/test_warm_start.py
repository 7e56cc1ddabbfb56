from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.study.plans import PlanLedger
from thunder_tune.study.warm_start import moves, warm_starts
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.values.space import (
    CUDA_GRAPHS,
    EXECUTOR,
    FUSER,
    PROGRAM,
    REWRITE,
    Dimension,
    SearchSpace,
)

GLUE, LINEAR, SDPA = f"{FUSER}glue-0", f"{EXECUTOR}linear-0", f"{EXECUTOR}sdpa-0"
PACKED = f"{REWRITE}packed_linear-0"
FUSERS = ("inductor", "nvfuser", "torch")


def executor(name, *choices):
    return Dimension(name=name, family="executor", choices=choices)


def rewrite(name, *choices):
    return Dimension(name=name, family="rewrite", choices=("none", *choices))


def fuser(name, *choices):
    return Dimension(name=name, family="fuser", choices=choices)


def ledger_of(space):
    description = synthetic_description(space)
    return PlanLedger(description.program, description.space)


def composed(space):
    return [a for a in warm_starts(ledger_of(space)) if a[PROGRAM] == "composed"]


@pytest.fixture
def program(dimensions):
    """The dimension of whole programs, and others."""
    return lambda **options: dimensions(**{"glue": 0, "anchors": 0, **options})


class TestWarmStarts:
    def test_begin_with_the_whole_programs(self, program):
        space = program(glue=2)
        found = list(warm_starts(ledger_of(space)))
        assert [a[PROGRAM] for a in found[:4]] == list(space[0].choices[1:])
        assert {a[PROGRAM] for a in found[4:]} == {"composed"}

    def test_put_kernels_into_what_the_first_fuser_makes(self, program):
        space = (
            *program(),
            fuser(GLUE, *FUSERS),
            executor(LINEAR, "inductor", "torch", "float8"),
            rewrite(PACKED, "packed_linear", "float8"),
        )
        found = [(a[GLUE], a[LINEAR], a[PACKED]) for a in composed(space)]
        assert found[0] == ("inductor", "inductor", "none")
        assert found[1] == ("inductor", "float8", "float8")
        assert {
            ("inductor", "torch", "none"),
            ("inductor", "torch", "packed_linear"),
            ("inductor", "torch", "float8"),
        } <= set(found)

    def test_put_8_bits_with_and_without_epilogues_in_16(self, program):
        gelu, mlp, grouped = (
            f"{REWRITE}{k}-0" for k in ("linear_gelu", "mlp", "grouped_attention")
        )
        space = (
            *program(),
            fuser(GLUE, *FUSERS),
            executor(LINEAR, "inductor", "torch", "float8", "float8_static"),
            rewrite(gelu, "addmm_gelu", "cublaslt"),
            rewrite(mlp, "float8_mlp"),
            rewrite(grouped, "grouped_sdpa"),
        )
        found = [(a[LINEAR], a[gelu], a[mlp], a[grouped]) for a in composed(space)]
        in_8_bits = [f for f in found if f[0].startswith("float8")]
        assert [*dict.fromkeys(in_8_bits)] == [
            ("float8_static", "none", "float8_mlp", "grouped_sdpa"),
            ("float8_static", "cublaslt", "none", "grouped_sdpa"),
            ("float8", "none", "none", "grouped_sdpa"),
            ("float8", "cublaslt", "none", "grouped_sdpa"),
        ]

    def test_put_few_bytes_of_weights_first_where_they_are_waited_for(self, program):
        tokens, gelu = f"{EXECUTOR}embedding-0", f"{REWRITE}linear_gelu-0"
        small = ("few_rows", "int4_weights", "float8_weights")
        space = (
            *program(),
            fuser(GLUE, *FUSERS),
            executor(LINEAR, "inductor", "torch", "float8", *small),
            executor(tokens, "inductor", "torch", *small[1:]),
            rewrite(PACKED, "packed_linear", "float8", *small),
            rewrite(gelu, "addmm_gelu"),
        )
        found = [(a[LINEAR], a[tokens], a[PACKED], a[gelu]) for a in composed(space)]
        assert found[1:5] == [
            ("int4_weights", "int4_weights", "int4_weights", "none"),
            ("int4_weights", "int4_weights", "int4_weights", "none"),  # without CUDA graphs
            ("float8_weights", "float8_weights", "float8_weights", "none"),
            ("few_rows", "inductor", "few_rows", "none"),
        ]
        assert ("float8", "inductor", "float8", "none") in found

    def test_try_the_first_bet_with_and_without_graphs(self, program):
        space = (*program(graphs=True), fuser(GLUE, *FUSERS), rewrite(PACKED, "packed_linear"))
        found = [(a[PACKED], a[CUDA_GRAPHS]) for a in composed(space)]
        assert found[:3] == [
            ("packed_linear", "whole"),
            ("none", "whole"),
            ("packed_linear", "none"),
        ]
        assert {graphs for _, graphs in found[3:]} == {"whole"}

    def test_take_products_for_convolutions(self, program):
        space = (*program(), fuser(GLUE, *FUSERS), executor("executor:conv-0", "torch", "matmul"))
        assert [a["executor:conv-0"] for a in composed(space)][:2] == ["torch", "matmul"]

    def test_keep_attention_whole_in_training(self, program):
        space = (*program(), fuser(GLUE, *FUSERS), executor(SDPA, "inductor", "torch", "sdpa"))
        description = synthetic_description(space)
        for training, expected in ((False, "torch"), (True, "sdpa")):
            changed = replace(description.program, training=training)
            found = list(warm_starts(PlanLedger(changed, description.space)))
            bets = [a for a in found if a[PROGRAM] == "composed"]
            assert bets[1][SDPA] == expected

    def test_try_both_attention_kernels_with_a_gradient(self, program):
        grouped = f"{REWRITE}grouped_attention-0"
        space = (
            *program(graphs=True),
            fuser(GLUE, *FUSERS),
            executor(SDPA, "inductor", "torch", "sdpa", "flash_attention", "cudnn_attention"),
            rewrite(grouped, "flash_attention", "cudnn_attention"),
            rewrite(PACKED, "packed_linear"),
        )
        description = synthetic_description(space)
        changed = replace(description.program, training=True)
        found = list(warm_starts(PlanLedger(changed, description.space)))
        bets = [a for a in found if a[PROGRAM] == "composed"]
        kernels = {(a[SDPA], a[grouped]) for a in bets}
        assert (bets[0][SDPA], bets[0][grouped]) == ("flash_attention", "flash_attention")
        assert ("cudnn_attention", "cudnn_attention") in kernels
        assert {a[PACKED] for a in bets} == {"none"}
        assert bets[0][CUDA_GRAPHS] == "whole"

    def test_are_the_default_alone_where_nothing_fuses(self, program):
        found = composed((*program(), executor(LINEAR, "torch", "other")))
        assert {a[LINEAR] for a in found} == {"torch"}

    def test_are_the_back_ends_where_nothing_can_be_composed(self, program):
        found = list(warm_starts(ledger_of(program(whole=("eager",)))))
        assert found == [{PROGRAM: "eager"}]


class TestMoves:
    space = SearchSpace(
        dimensions=(
            fuser(GLUE, *FUSERS),
            fuser(f"{FUSER}glue-1", *FUSERS),
            executor(LINEAR, "inductor", "torch", "float8"),
            executor(f"{EXECUTOR}linear-1", "inductor", "torch"),
            executor(f"{EXECUTOR}layer_norm-0", *FUSERS, "apex"),
            rewrite(PACKED, "packed_linear"),
            Dimension(name=CUDA_GRAPHS, family="cuda_graphs", choices=("none", "whole")),
        )
    )
    best = MappingProxyType({**space.default, LINEAR: "torch", f"{EXECUTOR}linear-1": "torch"})

    def changes(self):
        found = []
        for a in moves(self.space, self.best):
            changed = {k: v for k, v in a.items() if v != self.best[k]}
            found += [changed] if changed else []
        return found

    def test_change_all_of_a_kind_where_it_is_offered(self):
        assert {PACKED: "packed_linear"} in self.changes()
        assert {LINEAR: "float8"} in self.changes()
        assert {LINEAR: "inductor", f"{EXECUTOR}linear-1": "inductor"} in self.changes()
        assert {CUDA_GRAPHS: "whole"} in self.changes()

    def test_change_a_fuser_wherever_it_works_now(self):
        others = {GLUE: "nvfuser", f"{FUSER}glue-1": "nvfuser"}
        assert {**others, f"{EXECUTOR}layer_norm-0": "nvfuser"} in self.changes()

    def test_are_few(self):
        assert len(self.changes()) == 5

    @given(st.data())
    def test_stay_in_the_space(self, data):
        assignment = {d.name: data.draw(st.sampled_from(d.choices)) for d in self.space.dimensions}
        for moved in moves(self.space, assignment):
            assert list(moved) == list(assignment)
            assert all(moved[d.name] in d.choices for d in self.space.dimensions)
