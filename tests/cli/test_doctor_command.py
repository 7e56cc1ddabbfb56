from __future__ import annotations

import json
from types import SimpleNamespace

import pynvml
import pytest

from thunder_tune.cli import doctor_command
from thunder_tune.cli.exits import run


@pytest.fixture
def no_gpu(monkeypatch):
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)


@pytest.mark.usefixtures("no_gpu")
def test_what_is_needed_is_installed_here(capsys):
    assert run(["doctor", "--json"]) == 0
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["torch"]["state"] == "ok"
    assert checks["C++ compiler"]["state"] == "ok"
    assert checks["executor torch"]["state"] == "ok"
    assert checks["GPU"]["state"] == "missing"
    assert "models run on the CPU" in checks["GPU"]["detail"]
    assert all(c["detail"] for c in checks.values())


@pytest.mark.usefixtures("no_gpu")
def test_the_table(capsys):
    assert run(["doctor"]) == 0
    assert "lightning-thunder" in capsys.readouterr().out


@pytest.mark.usefixtures("no_gpu")
def test_without_a_compiler_the_status_is_one(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run(["doctor"]) == 1
    assert "no-such-compiler not found" in capsys.readouterr().out


@pytest.mark.usefixtures("no_gpu")
def test_a_missing_package_says_what_it_would_add(capsys, monkeypatch):
    monkeypatch.setattr(doctor_command, "installed", lambda name: None)
    assert run(["doctor"]) == 1
    assert "pip install 'thunder-tune[cudnn]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("processes", "text"), [([], "not shared"), ([41, 42], "shared with processes 41, 42")]
)
def test_a_gpu_says_who_else_uses_it(monkeypatch, processes, text):
    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**30, total=139 * 2**30),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=p) for p in processes],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *arguments, answer=answer: answer)
    (check,) = doctor_command.devices()
    assert check.name == "GPU 0"
    assert check.detail == f"NVIDIA H200, 1.0 of 139 GiB used, {text}"


@pytest.mark.usefixtures("no_gpu")
def test_a_broken_installation_is_a_line_of_the_report(monkeypatch):
    def broken() -> list[doctor_command.Check]:
        raise AttributeError("torch.Tensor has no attribute\nalign_as")

    (check,) = doctor_command.guarded("executors", broken)
    assert check.state == "broken"
    assert check.detail == "AttributeError: torch.Tensor has no attribute align_as"
