"""What docs/planning.md shows is what its commands print."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybrid.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```console\n\$ hybrid ([^\n]*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def printed(command: str, tmp_path: Path) -> str:
    """Standard output and error, without spaces at the ends of lines. Pictures go elsewhere."""
    words = [str(tmp_path / word.split("/")[-1]) if word.endswith(".png") else word for word in shlex.split(command)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    return "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command[:60] for command, _ in EXAMPLES])
def test_examples(command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert printed(command, tmp_path) == shown


def test_there_are_examples_of_five_models() -> None:
    assert len({word for command, _ in EXAMPLES for word in command.split() if word.endswith(".json")}) >= 5
