"""The example converses about pictures, with the bundled model and with a checkpoint of a published type."""

import re
import sys
from pathlib import Path

import pytest

from examples.multimodal_chat import main
from tests.multimodal.oracle import Oracle, all_cases, picture


def converse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["multimodal_chat", "--memory", "32MiB", "--max-tokens", "8", *arguments])
    main()


def hits(output: str) -> list[int]:
    return [int(count) for count in re.findall(r"(\d+) of \d+ prompt tokens from the prefix cache", output)]


def test_the_bundled_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    converse(monkeypatch)
    output = capsys.readouterr().out
    assert len(re.findall(r"\.png: \d+ x \d+, \d+ tokens", output)) == 3
    assert "\n3\n" in output, "the digit in the picture"
    first, second, third = hits(output)
    assert first == 0 < second < third


def test_a_checkpoint_of_a_published_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = Oracle(all_cases()["gemma3: windows"], tmp_path / "model").folder
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    for index, path in enumerate(paths):
        picture(index, 30, 20 + index).save(path)
    a, b, c = map(str, paths)
    url = paths[2].as_uri()
    converse(monkeypatch, "--model", str(folder), "--turn", "What?", a, b, "--turn", "And?", c)
    output = capsys.readouterr().out
    costs = [int(cost) for cost in re.findall(r"\.png: 30 x 2\d, (\d+) tokens", output)]
    assert len(costs) == 3 and len(set(costs)) == 1
    assert costs[0] > 9, "its own tokens, and what is around them"
    assert hits(output)[1] > 0
    with pytest.raises(SystemExit, match="may not be read"):
        converse(monkeypatch, "--model", str(folder), "--turn", "What?", url)
    converse(monkeypatch, "--model", str(folder), "--turn", "What?", url, "--allowed-local-media-path", str(tmp_path))
