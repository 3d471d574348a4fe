"""Folders from anybody: whatever lies there, the answer is one sentence, and no thread is held up."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybrid.adapters import checkpoint
from hybrid.adapters.checkpoint import open_adapter
from hybrid.adapters.config import CONFIG
from hybrid.adapters.naming import ModuleNames
from hybrid.adapters.patterns import check_speed

from .peft_adapters import LLAMA_TARGETS
from .written import write_adapter

WEIGHTS = checkpoint.WEIGHTS
NAME = "model.layers.0.self_attn.q_proj"
ENDLESS = "(.|.)*(.|.)*(.|.)*!"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", {NAME: (16, 16)})


def refusal(folder: str | Path) -> str:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        open_adapter(folder, ModuleNames(LLAMA_TARGETS), 8)
    return str(caught.value)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir, lambda path: Path.symlink_to(path, "/dev/zero")])
def test_what_is_no_file_is_not_opened(folder: Path, name: str, put: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    put(folder / name)
    assert refusal(folder) == f"{folder / name} is no regular file"


def test_a_file_that_became_a_pipe_is_not_opened(folder: Path) -> None:
    opened = open_adapter(folder, ModuleNames(LLAMA_TARGETS), 8)
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)
    with pytest.raises(ValueError, match="is no regular file"):
        opened.read()


@pytest.mark.parametrize("path", ["x" * 5000, "~no-such-user/x", "a\0b", "/dev/zero"])
def test_what_is_no_folder(path: str) -> None:
    assert refusal(path).startswith(path)


def change(folder: Path, **options: Any) -> None:
    data = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(data | options))


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ENDLESS},
        {"target_modules": "(.|.)*a"},  # finds the beginning of a name at once, and never all of it
        {"alpha_pattern": {ENDLESS: 1}},
    ],
)
def test_an_expression_without_end(folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "check_speed", partial(check_speed, seconds=0.3))
    change(folder, **options)
    assert "matching its regular expressions with the modules takes longer than 0.3 seconds" in refusal(folder)


@pytest.mark.parametrize(
    ("key", "pattern"), [("layers_pattern", "("), ("layers_pattern", "(?P<idx>a)"), ("rank_pattern", "(?i)q_proj")]
)
def test_what_is_no_expression_where_it_is_used(folder: Path, key: str, pattern: str) -> None:
    value = pattern if key == "layers_pattern" else {pattern: 4}
    change(folder, target_modules=["q_proj"], layers_to_transform=[0], **{key: value})
    assert f"{key} '{pattern}' is no regular expression" in refusal(folder)


def test_a_configuration_of_no_end(folder: Path) -> None:
    with (folder / CONFIG).open("a") as file:
        file.write(" " * (1 << 22))
    assert "bytes, more than 4,194,304" in refusal(folder)
