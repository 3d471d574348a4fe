"""What a user names as a model is found, fetched from the hub (here a fake, in a folder) or refused in one sentence."""

import json
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from typer.testing import CliRunner

from hybrid import LLM
from hybrid.checkpoints import HUB_FILES, find_checkpoint
from hybrid.cli import app


def response(status: int) -> Any:
    return httpx.Response(status, request=httpx.Request("GET", "http://hub"))


class Hub:
    """Stands for `snapshot_download`. Repositories are folders in `remote`, snapshots go to `cache`."""

    def __init__(self, folder: Path) -> None:
        self.remote = folder / "remote"
        self.cache = folder / "cache"
        self.downloads: list[str] = []
        self.error: Exception | None = None

    def __call__(self, repo_id: str, *, allow_patterns: Sequence[str], local_files_only: bool = False) -> str:
        snapshot = self.cache / repo_id.replace("/", "--")
        if local_files_only:
            if not snapshot.is_dir():
                raise LocalEntryNotFoundError("nothing in the cache")
            return str(snapshot)
        if self.error is not None:
            raise self.error
        self.downloads.append(repo_id)
        source = self.remote / repo_id
        if not source.is_dir():
            raise RepositoryNotFoundError("404", response=response(404))
        snapshot.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, snapshot)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub(tmp_path)
    shutil.copytree(find_checkpoint("tiny"), fake.remote / "some" / "model-1.5B")
    for name in ("pytorch_model.bin", "model.gguf", "consolidated.00.pth", "modeling.py", "onnx.onnx"):
        (fake.remote / "some" / "model-1.5B" / name).write_bytes(b"never wanted")
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    monkeypatch.chdir(tmp_path)
    return fake


def refused(model: str) -> str:
    with pytest.raises(ValueError, match=model) as caught:
        LLM(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_of_the_hub_is_fetched_once(hub: Hub) -> None:
    llm = LLM("some/model-1.5B", memory="16MiB")
    assert llm.get_default_sampling_params().temperature == 0.0
    fetched = sorted(path.name for path in hub.cache.rglob("*") if path.is_file())
    assert fetched == sorted(path.name for path in find_checkpoint("tiny").iterdir() if path.suffix != ".py")
    hub.error = ConnectionError("offline")
    assert find_checkpoint("some/model-1.5B").parent == hub.cache
    assert hub.downloads == ["some/model-1.5B"]


def test_a_download_that_was_interrupted_goes_on(hub: Hub) -> None:
    path = find_checkpoint("some/model-1.5B")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (path / name).unlink()
        assert (find_checkpoint("some/model-1.5B") / name).is_file()
    shards = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(shards))
    find_checkpoint("some/model-1.5B")
    assert len(hub.downloads) == 5
    (path / "model.safetensors.index.json").write_text("[]")
    find_checkpoint("some/model-1.5B")
    assert len(hub.downloads) == 6
    hub.error = ConnectionError("offline")  # what there is, is better than nothing: what it lacks is named
    (path / "model.safetensors.index.json").unlink()
    (path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"some--model-1\.5B holds no config\.json"):
        LLM("some/model-1.5B")


def test_a_folder_of_that_name_comes_first(hub: Hub) -> None:
    shutil.copytree(find_checkpoint("tiny"), Path("some/model-1.5B"))
    assert find_checkpoint("some/model-1.5B") == Path("some/model-1.5B")
    assert hub.downloads == []


def test_what_the_hub_does_not_give_is_one_sentence(hub: Hub) -> None:
    assert "the model hub knows no such model, or it is private" in refused("some/other")
    for error, words in (
        (GatedRepoError("403", response=response(403)), "only to those who were granted access"),
        (ConnectionError("no route\nto host"), r"the model hub cannot be reached (ConnectionError)"),
        (httpx.ConnectError("refused"), "the model hub cannot be reached (ConnectError)"),
        (LocalEntryNotFoundError("offline mode"), "the model hub cannot be reached"),
    ):
        hub.error = error
        assert words in refused("some/other")
    done = CliRunner().invoke(app, ["chat", "--prompt", "Hello", "--model", "some/other"])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "model", ["./some/model", "/some/model", "a/b/c", "nowhere", "some/model.gguf", "../model", "a b/c"]
)
def test_what_is_no_id_never_reaches_the_hub(hub: Hub, model: str) -> None:
    hub.error = AssertionError("asked the hub")
    assert refused(model).endswith("is neither a folder nor a bundled checkpoint (tiny, smollm2)")
    with pytest.raises(ValueError, match=r"\(tiny, smollm2\)$"):
        LLM(Path("some/other"))


def test_pickles_and_code_are_never_fetched() -> None:
    for name in (
        "pytorch_model.bin",
        "model.pt",
        "model.ckpt",
        "modeling_x.py",
        "tf_model.h5",
        "model.gguf",
        "model.pkl",
    ):
        assert not any(fnmatch(name, pattern) for pattern in HUB_FILES)
    for name in ("model.safetensors", "model-00001-of-00030.safetensors", "chat_template.jinja", "tokenizer.json"):
        assert any(fnmatch(name, pattern) for pattern in HUB_FILES)


def test_other_paths_are_named(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"is a file; a checkpoint is a folder or a GGUF file"):
        LLM(tmp_path / "file.bin")
    with pytest.raises(ValueError, match="is neither a file nor a folder"):
        LLM("/dev/null")
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        LLM(tmp_path)
