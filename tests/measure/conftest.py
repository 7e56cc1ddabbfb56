from __future__ import annotations

import pytest
import torch

from thunder_tune.measure.accuracy import Judge
from thunder_tune.testing.judged import make_inputs, make_model


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tiny models gain nothing from threads, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def judge(model):
    return Judge(model, make_inputs, device="cpu", policies=["same", "mixed", "low", "any"])


@pytest.fixture(scope="module")
def training_judge(model):
    return Judge(model, make_inputs, device="cpu", training=True)
