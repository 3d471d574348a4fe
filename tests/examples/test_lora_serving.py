"""The example that serves two adapters, with adapters that say other things than the model."""

from pathlib import Path

import pytest

from examples.lora_serving import QUESTIONS, main, server
from hybrid.checkpoints import find_checkpoint
from hybrid.models.loading import read_config
from tests.adapters.written import write_adapter


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    targets = {
        name: shape for name, shape in read_config(find_checkpoint("tiny")).lora_targets().items() if "q_proj" in name
    }
    return {name: write_adapter(tmp_path / name, targets, seed=seed) for seed, name in enumerate(("spanish", "json"))}


def test_it_prints_the_answers_side_by_side(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main([f"--{name}={folder}" for name, folder in folders.items()])
    printed = capsys.readouterr().out
    for text in ("tiny", *folders, *(question for _, question in QUESTIONS)):
        assert text in printed


def test_an_adapter_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"--spanish={tmp_path}"])
    assert f"{tmp_path} holds no adapter: train both" in capsys.readouterr().err


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no folder with an adapter"), server({"poet": tmp_path / "nowhere"}):
        pass
