from __future__ import annotations

import torch

from thunder_tune.models import Inputs


def test_tensors_are_found_in_nested_arguments():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    inputs = Inputs((a, [b, 4]), {"mask": {"rows": c}, "scale": 2.0})
    assert [t.numel() for t in inputs.tensors()] == [1, 2, 3]


def test_map_keeps_the_structure_and_what_is_no_tensor():
    inputs = Inputs((torch.ones(1), 4), {"mask": [torch.ones(2)]})
    changed = inputs.map(torch.Tensor.double)
    assert changed.args[1] == 4
    assert changed.args[0].dtype == changed.kwargs["mask"][0].dtype == torch.float64
    assert inputs.args[0].dtype == torch.float32
