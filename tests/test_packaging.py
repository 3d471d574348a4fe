"""What is installed: one import name, four links, pinned versions, the bundled checkpoint."""

import re
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hybrid

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = {
    requirement.name: str(requirement.specifier)
    for requirement in (
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
}


@pytest.mark.parametrize("folder", ["pools", "models", "encoders", "adapters"])
def test_a_folder_is_linked_relatively(folder: str) -> None:
    link = ROOT / "hybrid" / folder
    assert link.is_symlink(), "a checkout without links has a text file here"
    assert str(link.readlink()) == f"../{folder}"


def test_the_installed_distribution_is_this_package() -> None:
    installed = metadata.distribution("hybrid-pools")
    assert installed.version == hybrid.__version__
    [script] = [point for point in installed.entry_points if point.group == "console_scripts"]
    assert (script.name, script.value) == ("hybrid", "hybrid.cli:main")


def test_only_the_name_hybrid_is_installed() -> None:
    found = PYPROJECT["tool"]["setuptools"]["packages"]["find"]
    assert found == {"include": ["hybrid", "hybrid.*"], "namespaces": False}


def test_torch_is_pinned_without_a_local_part() -> None:
    assert PINS["torch"] == "==2.13.0"
    assert all(re.fullmatch(r"==[^+*]+", pin) for pin in PINS.values()), PINS


def test_everything_that_is_declared_is_pinned() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    lines = [
        *PYPROJECT["project"]["dependencies"],
        *(line for extra in sorted(set(extras) - {"cuda"}) for line in extras[extra]),
    ]
    names = {canonicalize_name(Requirement(line).name) for line in lines} - {"hybrid-pools"}
    assert names - {canonicalize_name(name) for name in PINS} == set()


def test_the_pins_satisfy_what_is_declared() -> None:
    by_name = {canonicalize_name(name): pin.removeprefix("==") for name, pin in PINS.items()}
    for line in PYPROJECT["project"]["dependencies"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(by_name[canonicalize_name(requirement.name)]), line


def test_triton_is_asked_for_only_where_it_is_built() -> None:
    [line] = [line for line in PYPROJECT["project"]["dependencies"] if line.startswith("triton")]
    marker: Marker | None = Requirement(line).marker
    assert marker is not None
    assert marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
    assert not marker.evaluate({"sys_platform": "linux", "platform_machine": "aarch64"})
    assert not marker.evaluate({"sys_platform": "darwin", "platform_machine": "x86_64"})


@pytest.mark.parametrize("package", ["models", "adapters"])
def test_every_file_of_a_bundled_checkpoint_is_package_data(package: str) -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"][f"hybrid.{package}"]
    assert {"checkpoints/**/*.json", "checkpoints/**/*.safetensors"} <= set(patterns)

    folder = ROOT / package / "checkpoints"
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    # A checkpoint has a folder of its own; a setuptools `**` also matches no folder at all.
    names = ["checkpoints/any/" + path.name for path in files if path.suffix not in {".py", ".md"}]
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_the_type_marker_is_shipped() -> None:
    assert (ROOT / "hybrid" / "py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["hybrid"]


def test_the_exported_names_exist_and_others_do_not() -> None:
    assert set(hybrid.__all__) <= set(dir(hybrid))
    assert hybrid.SamplingParams.__module__ == "hybrid.sampling_params"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        hybrid.Nothing  # noqa: B018
