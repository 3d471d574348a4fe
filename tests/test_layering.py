"""Arrows point one way: pools <- {models, encoders, adapters} <- hybrid.

The checker reads the imports of the real folders as text (AST) and, for what must start without torch, imports it in a
fresh interpreter and looks at what came along. The checker is itself checked on planted violations.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MIDDLE = ("models", "encoders", "adapters")
LINKED = ("pools", *MIDDLE)
HEAVY = ("torch", "transformers")
# Folders of hybrid/ that decide about numbers only.
WITHOUT_TORCH = ("hybrid.scheduler", "hybrid.capacity")


def _sources(root: Path) -> Iterator[tuple[Path, str]]:
    """Every module of ours once, with its dotted name; the links in hybrid/ are left out."""
    for folder in (*LINKED, "hybrid", "tests", "benchmarks", "examples"):
        for directory, subfolders, files in os.walk(root / folder):  # does not follow links
            subfolders.sort()
            for file in sorted(files):
                if file.endswith(".py"):
                    path = Path(directory, file)
                    parts = path.relative_to(root).with_suffix("").parts
                    prefix = ("hybrid",) if folder in LINKED else ()
                    yield path, ".".join(prefix + parts)


def _folder(module: str) -> str:
    """The folder that a module of hybrid belongs to: hybrid.pools, hybrid.scheduler, ...; hybrid for its own files."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else "hybrid"


def _imports(path: Path, module: str) -> Iterator[tuple[int, bool, str]]:
    """(line, written relatively, absolute dotted target) of every import, wherever in the file it stands."""
    package = module.removesuffix(".__init__") if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, False, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                base = node.module or ""
            else:
                parts = package.split(".")
                above = parts[: len(parts) - (node.level - 1)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, node.level > 0, f"{base}.{alias.name}"


def _within(target: str, module: str) -> bool:
    return target == module or target.startswith(module + ".")


def _complaint(root: Path, module: str, relative: bool, target: str) -> str | None:
    """Why this import of this module breaks a rule, or None."""
    top = target.split(".")[0]
    if top in LINKED:
        return f"a bare import of {top}: it is hybrid.{top}"
    if not _within(module, "hybrid"):
        return None

    folder = _folder(module)
    if any(_within(target, linked) for linked in (f"hybrid.{name}" for name in LINKED)):
        target_folder = ".".join(target.split(".")[:2])
    else:
        # `from hybrid.scheduler import X` names a folder, `from hybrid.llm import X` a file of hybrid itself.
        second = target.split(".")[1] if "." in target else ""
        is_folder = second != "" and (root / "hybrid" / second).is_dir()
        target_folder = f"hybrid.{second}" if is_folder else top
    ours = top == "hybrid"

    if ours and target_folder == folder and not relative:
        return f"inside a folder imports are relative: {target}"
    if ours and target_folder != folder and relative:
        return f"across folders imports are absolute: {target}"

    if folder == "hybrid.pools":
        if ours and target_folder != folder:
            return f"pools imports nothing of ours: {target}"
        if not ours and top not in sys.stdlib_module_names and top != "numpy":
            return f"pools imports numpy only: {target}"
    in_the_middle = folder in {f"hybrid.{name}" for name in MIDDLE}
    if in_the_middle and ours and target_folder != folder and not _within(target, "hybrid.pools.specs"):
        return f"of ours this folder imports hybrid.pools.specs only: {target}"
    if folder in WITHOUT_TORCH and top in HEAVY:
        return f"this folder does without torch: {target}"
    return None


def violations(root: Path) -> list[str]:
    """`file:line: reason` of every import under `root` that breaks a rule of the house."""
    found = []
    for path, module in _sources(root):
        for line, relative, target in _imports(path, module):
            complaint = _complaint(root, module, relative, target)
            if complaint is not None:
                found.append(f"{path.relative_to(root)}:{line}: {complaint}")
    return found


_PROBE = """
import importlib, pkgutil, sys
for name in sys.argv[2:]:
    module = importlib.import_module(name)
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        importlib.import_module(inner.name)
print(*sorted(set(sys.argv[1].split(",")) & set(sys.modules)))
"""


def heavy_after_importing(root: Path, module: str) -> list[str]:
    """Which of HEAVY a fresh interpreter holds after importing `module` and everything below it."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, ",".join(HEAVY), module],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_imports_of_every_folder_keep_to_the_rules() -> None:
    assert violations(ROOT) == []


def test_every_folder_of_the_package_is_a_package() -> None:
    """packages.find skips a folder without __init__.py, which would then be missing from the wheel."""
    folders = {path.parent for path, module in _sources(ROOT) if _within(module, "hybrid")}
    assert folders, "no sources found"
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


LIGHT_MODULES = ("hybrid.pools", "hybrid.cli", "hybrid.sampling_params", "hybrid.outputs", *WITHOUT_TORCH)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_these_start_without_torch(module: str) -> None:
    assert heavy_after_importing(ROOT, module) == []


def test_the_package_itself_starts_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, hybrid; dir(hybrid); print('torch' in sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def _plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("pools/ledger.py", "import torch", "numpy only"),
        ("pools/ledger.py", "from transformers import AutoConfig", "numpy only"),
        ("pools/ledger.py", "import pydantic.fields", "numpy only"),
        ("pools/ledger.py", "def f():\n    import torch.cuda", "numpy only"),
        ("pools/ledger.py", "from hybrid.models.base import Model", "nothing of ours"),
        ("pools/ledger.py", "from hybrid.pools.specs import MambaSpec", "are relative"),
        ("pools/ledger.py", "from ..models import base", "are absolute"),
        ("pools/inner/deep.py", "from ...scheduler.plan import StepPlan", "are absolute"),
        ("models/zamba.py", "from hybrid.pools.ledger import Ledger", "hybrid.pools.specs only"),
        ("models/zamba.py", "from hybrid.pools import Ledger", "hybrid.pools.specs only"),
        ("models/zamba.py", "from hybrid.pools import specs_of_another_kind", "hybrid.pools.specs only"),
        ("models/zamba.py", "from ..pools.specs import MambaSpec", "are absolute"),
        ("models/zamba.py", "import hybrid.encoders.vit", "hybrid.pools.specs only"),
        ("models/zamba.py", "from hybrid import LLM", "hybrid.pools.specs only"),
        ("encoders/vit.py", "from hybrid.adapters import lora", "hybrid.pools.specs only"),
        ("adapters/lora.py", "from hybrid.scheduler.plan import StepPlan", "hybrid.pools.specs only"),
        ("adapters/lora.py", "from models.zamba import Zamba", "bare import of models"),
        ("hybrid/scheduler/commit.py", "import torch", "without torch"),
        ("hybrid/scheduler/commit.py", "from hybrid.scheduler.plan import StepPlan", "are relative"),
        ("hybrid/scheduler/commit.py", "from ..runner.batch import Batch", "are absolute"),
        ("hybrid/scheduler/commit.py", "from ..outputs import RequestOutput", "are absolute"),
        ("hybrid/capacity/simulate.py", "from torch import Tensor", "without torch"),
        ("hybrid/llm.py", "from hybrid.outputs import RequestOutput", "are relative"),
        ("hybrid/llm.py", "from .pools.specs import MambaSpec", "are absolute"),
        ("hybrid/llm.py", "import pools", "bare import of pools"),
        ("tests/pools/test_ledger.py", "from pools.ledger import Ledger", "bare import of pools"),
        ("benchmarks/overhead.py", "import encoders.vit", "bare import of encoders"),
    ],
)
def test_the_checker_finds_a_planted_violation(tmp_path: Path, name: str, line: str, reason: str) -> None:
    _plant(tmp_path, "hybrid/runner/__init__.py", "")
    _plant(tmp_path, name, f'"""A file."""\n\n{line}\n')
    [found] = violations(tmp_path)
    assert found.startswith(f"{name}:")
    assert reason in found


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("pools/ledger.py", "import numpy as np\nfrom dataclasses import dataclass\nfrom .specs import MambaSpec"),
        ("pools/__init__.py", "from .ledger import Ledger\nfrom . import specs"),
        ("pools/inner/deep.py", "from ..specs import MambaSpec"),
        ("models/zamba.py", "import torch\nfrom hybrid.pools.specs import MambaSpec\nfrom .base import Model"),
        ("encoders/vit.py", "from hybrid.pools import specs"),
        ("hybrid/scheduler/commit.py", "from hybrid.pools import Ledger\nfrom .plan import StepPlan"),
        ("hybrid/runner/batch.py", "import torch\nfrom hybrid.outputs import Logprob\nfrom hybrid import outputs"),
        ("hybrid/llm.py", "from hybrid.runner import Runner\nfrom .outputs import RequestOutput"),
        ("tests/pools/test_ledger.py", "import torch\nfrom hybrid.pools.ledger import Ledger"),
    ],
)
def test_the_checker_accepts_what_the_rules_allow(tmp_path: Path, name: str, line: str) -> None:
    _plant(tmp_path, "hybrid/runner/__init__.py", "")
    _plant(tmp_path, name, line + "\n")
    assert violations(tmp_path) == []


def test_the_probe_sees_torch_behind_two_imports(tmp_path: Path) -> None:
    _plant(tmp_path, "torch.py", "")
    _plant(tmp_path, "planted/__init__.py", "")
    _plant(tmp_path, "planted/first.py", "from .helpers import second")
    _plant(tmp_path, "planted/helpers/__init__.py", "")
    _plant(tmp_path, "planted/helpers/second.py", "import torch")
    assert heavy_after_importing(tmp_path, "planted") == ["torch"]
    assert heavy_after_importing(tmp_path, "json") == []


def test_the_probe_lets_a_lazy_import_pass(tmp_path: Path) -> None:
    _plant(tmp_path, "torch.py", "")
    _plant(tmp_path, "planted.py", "def later() -> None:\n    import torch\n")
    assert heavy_after_importing(tmp_path, "planted") == []
