from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

from thunder_tune import machine
from thunder_tune.errors import InputError
from thunder_tune.machine import current_fingerprint, installed, nvfuser_name


def test_installed_gives_versions_without_importing():
    assert installed("torch") == version("torch")
    assert installed("no-such-distribution") is None


@pytest.mark.parametrize("spelling", ["lightning-thunder", "lightning_thunder"])
def test_distribution_names_may_be_spelled_either_way(spelling):
    assert installed(spelling) == version("lightning-thunder")


def test_fingerprint_of_the_cpu():
    found = current_fingerprint("cpu")
    assert found.device
    assert found.capability == torch.backends.cpu.get_cpu_capability()
    assert found.threads == torch.get_num_threads()
    assert (found.driver, found.cuda) == ("", "")
    assert found.python == platform.python_version()
    assert found.packages["torch"] == version("torch")
    assert found.packages["lightning-thunder"] == version("lightning-thunder")
    assert "no-such-distribution" not in found.packages
    assert all(found.packages.values())


def test_fingerprint_is_the_same_twice():
    assert current_fingerprint("cpu").strict_key == current_fingerprint("cpu").strict_key


def test_threads_belong_to_the_fingerprint():
    before = torch.get_num_threads()
    one = current_fingerprint("cpu")
    torch.set_num_threads(before + 1)
    try:
        other = current_fingerprint("cpu")
    finally:
        torch.set_num_threads(before)
    assert one.differences(other) == [f"threads {before} here, {before + 1} there"]


def test_cpu_without_proc_has_a_name(monkeypatch):
    monkeypatch.setattr(machine, "Path", lambda _: machine_without_proc())
    assert current_fingerprint("cpu").device


def machine_without_proc():
    class Missing:
        def read_text(self, **_):
            raise FileNotFoundError("/proc/cpuinfo")

    return Missing()


@pytest.mark.parametrize("names", [["torch", "nvfuser-cu128-torch210"], ["nvfuser-cu121-torch25"]])
def test_nvfuser_is_found_under_any_of_its_names(monkeypatch, names):
    class Distribution:
        def __init__(self, name):
            self.name = name

    monkeypatch.setattr(machine, "distributions", lambda: [Distribution(n) for n in names])
    nvfuser_name.cache_clear()
    try:
        assert nvfuser_name() == names[-1]
    finally:
        nvfuser_name.cache_clear()


@pytest.mark.parametrize("device", ["tpu", "mps", "gpu:0"])
def test_unknown_device_is_refused(device):
    with pytest.raises(InputError, match=f"device '{device}': there is none here"):
        current_fingerprint(device)


def test_missing_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="device 'cuda': there is none here; use --device cpu"):
        current_fingerprint("cuda")


def test_import_does_not_load_torch():
    code = "import sys, thunder_tune.machine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_fingerprint_of_a_device():
    found = current_fingerprint("cuda")
    major, minor = torch.cuda.get_device_capability()
    assert found.device == torch.cuda.get_device_name()
    assert found.capability == f"sm_{major}{minor}"
    assert found.threads == 0
    assert found.driver
    assert found.cuda == torch.version.cuda
