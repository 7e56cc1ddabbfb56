"""A recipe's choices carried to another program."""

from __future__ import annotations

import torch

from thunder_tune.compiler.matching import match
from thunder_tune.program import capture
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve
from thunder_tune.values.recipe import TunedPlan


def test_seams_that_are_cut_are_cut_at_another_size():
    model = TinyTransformer().eval()
    tuned = capture(model, (torch.randn(2, 6, 16),), {}).program
    other = capture(model, (torch.randn(3, 5, 16),), {}).program
    assert {c.id for c in tuned.seam_classes}.isdisjoint(c.id for c in other.seam_classes)
    fused = {("executor:" if c.is_anchor else "fuser:") + c.id: "inductor" for c in tuned.classes}
    cut = tuned.seam_classes[0]
    plan = TunedPlan(
        signature="",
        program_hash=tuned.hash,
        program_loose_hash=tuned.loose_hash,
        assignment={**fused, "boundary:" + cut.id: "cut", "region_limit": "16"},
        classes=tuned.tuned_ids({"boundary:" + cut.id: "cut"}),
    )
    found = match(plan, other, "cpu")
    assert found.missing == ()
    assert found.assignment["boundary:" + other.seam_classes[0].id] == "cut"
    assert found.assignment["region_limit"] == "16"
    regions = [r.ops for r in resolve(tuned, plan.assignment).regions]
    assert [r.ops for r in resolve(other, found.assignment).regions] == regions
    assert len(regions) > 1
