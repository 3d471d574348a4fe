"""Adapters over HTTP: loaded, listed, asked by name, unloaded while somebody uses them."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest

from hybrid.adapters.checkpoint import AdapterCheckpoint
from hybrid.adapters.weights import AdapterWeights
from hybrid.checkpoints import find_checkpoint
from hybrid.engine import Engine
from hybrid.engine_args import EngineArgs
from hybrid.models.loading import read_config
from tests.adapters.written import write_adapter
from tests.server.serving import PATIENCE, Running, serving

LONG = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEFT adapter of one module of the bundled model, of rank 4."""
    targets = read_config(find_checkpoint("tiny")).lora_targets()
    name = next(name for name in targets if name.endswith("q_proj"))
    return write_adapter(tmp_path_factory.mktemp("adapter"), {name: targets[name]})


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    args = EngineArgs(
        model="tiny", max_num_seqs=2, memory="64MiB", num_threads=1, max_lora_rank=8, lora_modules={"first": folder}
    )
    with serving(args) as running:
        yield running


def names(server: Running) -> list[str]:
    return [model["id"] for model in server.http.get("/v1/models").json()["data"]]


def test_an_adapter_is_a_model(server: Running, folder: Path) -> None:
    card = server.http.get("/v1/models").json()["data"][-1]
    assert card["id"] == "first" and card["root"] == str(folder) and card["parent"] == "tiny"
    answer = server.http.post("/v1/completions", json={"model": "first", "prompt": "Hello"}).json()
    assert answer["model"] == "first" and answer["choices"]
    lora = server.stats().ledgers["LoRA"]
    assert lora.cached == 1 and lora.held == 0  # rank 4 is one unit, and stays until room is needed


def test_loaded_and_unloaded(server: Running, folder: Path) -> None:
    body = {"lora_name": "second", "lora_path": str(folder)}
    answer = server.http.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == 200 and answer.text == "Success: LoRA adapter 'second' added successfully."
    assert "second" in names(server)
    assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 400
    assert server.http.post("/v1/load_lora_adapter", json={**body, "load_inplace": True}).status_code == 200
    answer = server.http.post("/v1/unload_lora_adapter", json={"lora_name": "second"})
    assert answer.status_code == 200 and answer.text == "Success: LoRA adapter 'second' removed successfully."
    assert "second" not in names(server)
    assert server.http.post("/v1/unload_lora_adapter", json={"lora_name": "second"}).status_code == 404
    gone = server.http.post("/v1/chat/completions", json={"model": "second", "messages": [{"role": "user"}]})
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [{}, {"lora_name": "x"}, {"lora_name": "x", "lora_path": "/no/such"}, {"lora_name": "tiny", "lora_path": "."}],
)
def test_adapters_that_cannot_be_loaded(server: Running, body: dict[str, str]) -> None:
    answer = server.http.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert "x" not in names(server)


def test_unloading_waits_for_those_that_use_it(server: Running, folder: Path) -> None:
    server.http.post("/v1/load_lora_adapter", json={"lora_name": "busy", "lora_path": str(folder)})
    user = server.post_and_leave_open("/v1/completions", {**LONG, "model": "busy"})
    server.wait_for(lambda stats: stats.num_running == 1)
    with ThreadPoolExecutor() as pool:
        unloading = pool.submit(server.http.post, "/v1/unload_lora_adapter", json={"lora_name": "busy"})
        while "busy" in names(server):
            pass
        assert server.http.post("/v1/completions", json={**LONG, "model": "busy"}).status_code == 404
        assert server.stats().num_running == 1 and not unloading.done()
        user.close()
        assert unloading.result(PATIENCE).status_code == 200
    server.wait_for(lambda stats: stats.num_running == 0)


@pytest.mark.parametrize(("change", "status"), [("unload", 404), ("load", 200)])
def test_a_change_overtakes_a_request(server: Running, folder: Path, change: str, status: int) -> None:
    """Before the engine comes to it. Then nobody may use the old generation."""
    body = {"lora_name": change, "lora_path": str(folder), "load_inplace": True}
    server.http.post("/v1/load_lora_adapter", json=body)
    go, taken = Event(), Event()

    def hold_up(engine: Engine) -> None:
        taken.set()
        assert go.wait(PATIENCE)

    with ThreadPoolExecutor() as pool:
        pool.submit(server.ask, hold_up)
        assert taken.wait(PATIENCE)
        user = pool.submit(server.http.post, "/v1/completions", json={"model": change, "prompt": "Hello"})
        while server.engine._commands.empty():
            pass
        changing = pool.submit(server.http.post, f"/v1/{change}_lora_adapter", json=body)
        assert changing.result(PATIENCE).status_code == 200
        go.set()
        assert user.result(PATIENCE).status_code == status


def test_slow_loads_hold_up_no_pictures(server: Running, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = Event()
    read = AdapterCheckpoint.read

    def later(checkpoint: AdapterCheckpoint) -> AdapterWeights:
        assert go.wait(PATIENCE)
        return read(checkpoint)

    monkeypatch.setattr(AdapterCheckpoint, "read", later)
    picture = base64.b64encode(Path("examples/pictures/digit.png").read_bytes()).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    chat = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
    many = 40  # more than any event loop has threads for
    limits = httpx.Limits(max_connections=many)
    with ThreadPoolExecutor(many) as pool, httpx.Client(base_url=server.url, timeout=PATIENCE, limits=limits) as client:
        bodies = [{"lora_name": f"slow{i}", "lora_path": str(folder)} for i in range(many)]
        loading = [pool.submit(client.post, "/v1/load_lora_adapter", json=body) for body in bodies]
        while len(server.ask(pending)) < 2:
            pass
        assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
        assert not any(one.done() for one in loading)
        go.set()
        assert [one.result(PATIENCE).status_code for one in loading] == [200] * many


def pending(engine: Engine) -> list[int]:
    """Generations that are being loaded."""
    assert engine.adapters is not None
    return [lora_id for lora_id, generation in engine.adapters._generations.items() if generation.weights is None]


def test_many_load_one_name(server: Running, folder: Path) -> None:
    body = {"lora_name": "same", "lora_path": str(folder)}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: server.http.post("/v1/load_lora_adapter", json=body), range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] + 15 * [400]
    assert names(server).count("same") == 1


def test_a_server_without_adapters_says_so() -> None:
    with serving() as plain:
        for path, body in (("load", {"lora_name": "a", "lora_path": "b"}), ("unload", {"lora_name": "a"})):
            answer = plain.http.post(f"/v1/{path}_lora_adapter", json=body)
            assert answer.status_code == 400 and "--enable-lora" in answer.json()["error"]["message"]
