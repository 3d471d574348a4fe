"""The README names every source file, so that a reader can find what is where."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_has_its_line() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    modules = [Path(line) for line in listed.stdout.split() if not line.startswith("tests/")]
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## One line per file")[1]
    lines = {}
    folder = ""
    for line in section.splitlines():
        if line.startswith("**`"):
            folder = line.strip("*`/")
        elif line.startswith("- `"):
            lines[folder + "/" + line.split("`")[1]] = line
    present = {str(module) for module in modules if module.name != "__init__.py" and (ROOT / module).exists()}
    assert set(lines) == present
