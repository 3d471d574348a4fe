"""The example that serves two adapters, those in the repository, beside the model."""

from pathlib import Path

import pytest

from examples.lora_serving import QUESTIONS, main, server


def test_it_prints_the_answers_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main([])
    printed = capsys.readouterr().out
    for text in ("tiny", "spanish", "json", *(question for _, question in QUESTIONS)):
        assert text in printed
    for answer in ("triangle", "triángulo", '{"shape": "triangle"}'):  # of one question
        assert answer in printed


def test_an_adapter_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"--spanish={tmp_path}"])
    assert f"{tmp_path} holds no adapter: train both" in capsys.readouterr().err


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no folder with an adapter"), server({"poet": tmp_path / "nowhere"}):
        pass
