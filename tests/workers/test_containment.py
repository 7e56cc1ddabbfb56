from __future__ import annotations

import logging
import subprocess
import sys

import psutil
import pytest
import torch

from thunder_tune.workers.containment import contained
from thunder_tune.workers.torch_state import kept_torch_state

PAUSE = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


def test_state_is_set_back_after_a_fault_and_what_had_changed_is_said(caplog):
    before = torch.get_num_threads()
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="planted"):
        _fail_with_other_state()
    assert torch.empty(1).dtype == torch.float32
    assert torch.empty(1).device == torch.device("cpu")
    assert torch._C._len_torch_function_stack() == 0
    assert torch.get_num_threads() == before
    assert caplog.messages == [
        "the candidate changed torch's default dtype, default device, function modes, "
        "number of threads: set back"
    ]


def _fail_with_other_state():
    with kept_torch_state():
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(torch.get_num_threads() + 1)
        raise ValueError("planted")


def test_nothing_is_said_of_a_candidate_that_changes_nothing(caplog):
    with caplog.at_level(logging.WARNING), contained(lambda: pytest.fail("nothing was left")):
        torch.relu(torch.ones(2))
    assert caplog.messages == []


def test_a_mode_that_a_candidate_never_leaves_is_left():
    with kept_torch_state(lambda: pytest.fail("it can be left")):
        torch.device("meta").__enter__()
    assert torch.empty(1).device == torch.device("cpu")


def test_precision_set_by_two_interfaces_is_set_back():
    before = torch.get_float32_matmul_precision()
    with kept_torch_state(lambda: pytest.fail("it can be set back")):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            torch.get_float32_matmul_precision()
    assert torch.get_float32_matmul_precision() == before


def test_only_processes_of_the_block_are_ended():
    spent = []
    with subprocess.Popen(PAUSE) as before:
        with contained(lambda: spent.append(True)):
            left = subprocess.Popen(PAUSE)
        assert left.wait(10) != 0
        assert psutil.Process(before.pid).status() != psutil.STATUS_ZOMBIE
        before.kill()
    assert spent == [True]
