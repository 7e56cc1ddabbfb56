"""`pyproject.toml`, the folders and the README say the same."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
MAPPED = {name: folder for name, folder in SETUPTOOLS["package-dir"].items() if "." in name}


def folder_of(package: str) -> Path:
    """Return the real folder of an installed package's name."""
    for name, folder in MAPPED.items():
        if package == name or package.startswith(f"{name}."):
            return ROOT / folder / package.removeprefix(name).replace(".", "/").lstrip("/")
    return ROOT / package.replace(".", "/")


def packages_on_disk() -> set[str]:
    found = set()
    for top, name in [("thunder_tune", "thunder_tune"), *((f, n) for n, f in MAPPED.items())]:
        for here, folders, files in os.walk(ROOT / top):
            folders[:] = [f for f in folders if not (Path(here) / f).is_symlink()]
            if "__init__.py" in files:
                inside = Path(here).relative_to(ROOT / top).parts
                found.add(".".join((name, *inside)))
    return found


def test_every_package_on_disk_is_listed():
    assert set(SETUPTOOLS["packages"]) == packages_on_disk()


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_every_listed_package_imports(package: str):
    module = importlib.import_module(package)
    assert module.__doc__


@pytest.mark.parametrize(
    ("package", "pattern"),
    [(p, pattern) for p, patterns in SETUPTOOLS["package-data"].items() for pattern in patterns],
)
def test_every_data_pattern_matches(package: str, pattern: str):
    assert list(folder_of(package).glob(pattern))


def test_every_data_file_is_covered():
    covered = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in folder_of(package).glob(pattern)
    }
    tops = [ROOT / "thunder_tune", *(ROOT / folder for folder in MAPPED.values())]
    data = {
        path
        for top in tops
        for path in top.rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc")
        and not any(part.is_symlink() for part in path.parents if part != ROOT)
    }
    assert data == covered


@pytest.mark.parametrize(("name", "folder"), MAPPED.items())
def test_the_checkout_has_the_layout_of_an_installation(name: str, folder: str):
    link = ROOT / name.replace(".", "/")
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder
    assert not Path(os.readlink(link)).is_absolute()


def test_no_generic_name_reaches_site_packages():
    assert {package.partition(".")[0] for package in SETUPTOOLS["packages"]} == {"thunder_tune"}
    assert "py-modules" not in SETUPTOOLS


@pytest.mark.parametrize(
    "target",
    [
        *PROJECT["project"]["scripts"].values(),
        *(t for group in PROJECT["project"]["entry-points"].values() for t in group.values()),
    ],
)
def test_every_entry_point_is_there(target: str):
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def commands_of(readme: str) -> list[str]:
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", (ROOT / readme).read_text("utf-8"), re.DOTALL)
    return [block.strip() for block in blocks[:2]]


def test_both_readmes_begin_with_the_same_two_commands():
    first, second = commands_of("README.md")
    assert "thunder-tune run" in first
    assert "scripts/check" in second
    assert commands_of("README.zh.md") == [first, second]


def test_the_ci_calls_the_readmes_second_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert commands_of("README.md")[1] in script.splitlines()


def test_constraints_are_plain_pins_of_what_is_needed():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.+!]+", pin) for pin in pins)
    names = {re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins}
    needed = {
        re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()
        for requirement in (
            *PROJECT["project"]["dependencies"],
            *PROJECT["project"]["optional-dependencies"]["hf"],
            *PROJECT["project"]["optional-dependencies"]["dev"],
        )
    }
    assert needed - {"thunder-tune", "tomli"} <= names
