"""Adapters as users of the engine, of LLM and of the command line meet them: names, gates, errors, what is held."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner

from hybrid import LLM, LoRARequest, SamplingParams
from hybrid.adapters.checkpoint import AdapterCheckpoint
from hybrid.adapters.registry import Adapter
from hybrid.adapters.store import AdapterStore
from hybrid.adapters.weights import AdapterWeights
from hybrid.checkpoints import find_checkpoint
from hybrid.cli import app
from hybrid.engine import Engine
from hybrid.engine_args import EngineArgs
from hybrid.frontend.generation import Update
from hybrid.models.loading import read_config

from .adapters.written import write_adapter
from .scripted import SPECIAL, ScriptedRunner, prompt, scripted_engine

TARGETS: dict[str, tuple[int, ...]] = {"model.layers.0.self_attn.q_proj": (8, 6), "lm_head": (40, 6)}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


# --- the engine ----------------------------------------------------------------------------------------------------


class Files:
    """Whether adapters can be read: not before `let`, and not at all while `broken`."""

    def __init__(self) -> None:
        self.let = Event()
        self.broken = ""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    files, read = Files(), AdapterCheckpoint.read

    def controlled(checkpoint: AdapterCheckpoint) -> AdapterWeights:
        assert files.let.wait(30)
        if files.broken:
            raise ValueError(files.broken)
        return read(checkpoint)

    monkeypatch.setattr(AdapterCheckpoint, "read", controlled)
    return files


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    write_adapter(tmp_path / "poet", TARGETS)
    return AdapterStore(TARGETS, max_lora_rank=16, max_cpu_loras=0)


def add(engine: Engine, request_id: str, adapter: Adapter | None, max_tokens: int = 20) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    engine.add_request(request_id, prompt("prompt"), params, max_tokens=max_tokens, adapter=adapter)


def run(engine: Engine) -> dict[str, Update]:
    """The last update of every request."""
    last: dict[str, Update] = {}
    while engine.has_unfinished:
        last |= {update.request_id: update for update in engine.step()}
    return last


def is_gone(store: AdapterStore, adapter: Adapter) -> bool:
    try:
        store.status(adapter.lora_id)
    except ValueError:
        return True
    return False


def test_a_cold_adapter_holds_up_nobody_else(tmp_path: Path, store: AdapterStore, files: Files) -> None:
    engine = scripted_engine(ScriptedRunner({"cold": b"abc", "base": b"de"}), adapters=store)
    adapter = store.load("poet", tmp_path / "poet")
    add(engine, "cold", adapter)
    add(engine, "base", None)
    done: list[Update] = []
    while not any(update.request_id == "base" and update.finish_reason for update in done):
        done += engine.step()
    assert {update.request_id for update in done} == {"base"}
    files.let.set()
    store.wait(adapter.lora_id)
    assert run(engine)["cold"].finish_reason == "stop"


def test_a_file_that_cannot_be_read_ends_those_who_wait_for_it(
    tmp_path: Path, store: AdapterStore, files: Files
) -> None:
    engine = scripted_engine(ScriptedRunner({"other": b"a", "again": b"b"}), adapters=store)
    adapter = store.load("poet", tmp_path / "poet")
    add(engine, "first", adapter)
    add(engine, "second", adapter)
    add(engine, "other", None)
    files.broken = "the disk is gone"
    files.let.set()
    with pytest.raises(ValueError, match="the disk is gone"):
        store.wait(adapter.lora_id)
    last = run(engine)
    for request_id in ("first", "second"):
        assert last[request_id].finish_reason == "error"
        assert last[request_id].error == "adapter: adapter 'poet': the disk is gone"
    assert last["other"].finish_reason == "stop"
    files.broken = ""
    add(engine, "again", adapter)
    assert run(engine)["again"].finish_reason == "stop"


def test_who_runs_goes_on_when_the_name_goes(tmp_path: Path, store: AdapterStore) -> None:
    engine = scripted_engine(ScriptedRunner({"running": b"abcdef"}), adapters=store)
    adapter = store.load("poet", tmp_path / "poet")
    add(engine, "running", adapter)
    store.wait(adapter.lora_id)
    engine.step()
    store.unload("poet")
    with pytest.raises(ValueError, match=r"adapter 'poet' was unloaded"):
        add(engine, "late", adapter)
    assert store.weights(adapter.lora_id).rank == 4
    assert run(engine)["running"].finish_reason == "stop"
    assert is_gone(store, adapter)
    engine.scheduler.check()


def abort(engine: Engine) -> None:
    engine.abort("x")


def abort_while_running(engine: Engine) -> None:
    engine.step()
    engine.abort("x")


@pytest.mark.parametrize("end", [Engine.step, abort, abort_while_running])
def test_however_a_request_ends_it_holds_nothing(
    tmp_path: Path, store: AdapterStore, end: Callable[[Engine], object]
) -> None:
    engine = scripted_engine(ScriptedRunner({"x": b"abcdef"}), adapters=store)
    adapter = store.load("poet", tmp_path / "poet")
    store.hold(adapter.lora_id)
    store.wait(adapter.lora_id)
    add(engine, "x", adapter)
    store.release(adapter.lora_id)
    end(engine)
    run(engine)
    store.unload("poet")
    assert is_gone(store, adapter)


def test_refused_requests_hold_nothing(tmp_path: Path, store: AdapterStore) -> None:
    engine = scripted_engine(ScriptedRunner({}), adapters=store)
    wide = store.load("wide", write_adapter(tmp_path / "wide", TARGETS, rank=16))
    add(engine, "fits", wide)
    with pytest.raises(ValueError, match="request 'fits' exists already"):
        add(engine, "fits", wide)
    greedy = SamplingParams(max_tokens=4)
    with pytest.raises(ValueError, match="max_model_len"):
        engine.add_request("long", prompt("p" * 200), greedy, max_tokens=4, adapter=wide)
    unknown = SamplingParams(max_tokens=4, stop_token_ids=(SPECIAL + 1,))
    with pytest.raises(ValueError, match="no such token"):
        engine.add_request("runner", prompt("p"), unknown, max_tokens=4, adapter=wide)
    engine.abort("fits")
    run(engine)
    store.unload("wide")
    assert is_gone(store, wide)


# --- LLM -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with adapters of the bundled model: "poet", "clerk", and "alien" of another one."""
    folder = tmp_path_factory.mktemp("adapters")
    targets = read_config(find_checkpoint("tiny")).lora_targets()
    plain = {name: shape for name, shape in targets.items() if len(shape) == 2 and name.endswith("q_proj")}
    write_adapter(folder / "poet", plain)
    write_adapter(folder / "clerk", plain, rank=8, seed=1)
    write_adapter(folder / "alien", {"model.layers.99.self_attn.q_proj": (8, 8)})
    return folder


def small(**more: Any) -> LLM:
    return LLM(memory="64MiB", max_model_len=512, **more)


def test_llm_takes_adapters_by_request(adapters: Path) -> None:
    llm = small(enable_lora=True, max_loras=2, max_lora_rank=12)
    assert llm.sizes.lora_units == 4
    poet = LoRARequest("poet", 1, str(adapters / "poet"))
    clerk = LoRARequest("clerk", 2, str(adapters / "clerk"))
    outputs = llm.generate(["a", "b", "c"], GREEDY, lora_request=[poet, None, clerk])
    assert [len(output.outputs[0].token_ids) > 0 for output in outputs] == [True] * 3
    assert llm.list_loras() == ("poet", "clerk")
    messages = [{"role": "user", "content": "Hello"}]
    assert llm.chat(messages, GREEDY, lora_request=LoRARequest("poet"))[0].finished
    assert list(llm.stream("a", GREEDY, lora_request=poet))[-1].finished
    assert list(llm.stream_chat(messages, GREEDY, lora_request=clerk))[-1].finished
    ledger = llm.stats().ledgers["LoRA"]
    assert (ledger.held, ledger.cached) == (0, 2)
    llm.unload_lora_adapter("poet")
    with pytest.raises(ValueError, match=r"adapter 'poet' is not loaded; loaded are \['clerk'\]"):
        llm.generate("a", GREEDY, lora_request=LoRARequest("poet"))
    with pytest.raises(ValueError, match=r"adapter 'clerk' is loaded from .*clerk, not from .*poet"):
        llm.generate("a", GREEDY, lora_request=LoRARequest("clerk", 1, str(adapters / "poet")))
    llm.load_lora_adapter("clerk", adapters / "poet")
    assert llm.generate("a", GREEDY, lora_request=LoRARequest("clerk", 1, str(adapters / "poet")))[0].finished
    with pytest.raises(ValueError, match=r"adapter 'alien': .*model\.layers\.99\.self_attn\.q_proj"):
        llm.generate("a", GREEDY, lora_request=LoRARequest("alien", 1, str(adapters / "alien")))


def test_another_generation_never_meets_the_cache(adapters: Path) -> None:
    llm = small(lora_modules={"poet": adapters / "poet"})
    text = "The same beginning of a prompt, long enough to be cached. " * 4
    poet = LoRARequest("poet")

    def cached(lora_request: LoRARequest | None) -> int:
        return llm.generate(text, GREEDY, lora_request=lora_request)[0].num_cached_tokens

    assert [cached(poet), cached(None)] == [0, 0]
    assert cached(poet) > 0 and cached(None) > 0
    llm.load_lora_adapter("poet", adapters / "poet")
    assert cached(poet) == 0


def test_what_cannot_be_is_said_before_anything_runs(adapters: Path) -> None:
    poet = LoRARequest("poet", 1, str(adapters / "poet"))
    llm = small()
    assert llm.sizes.lora_units == 0 and llm.list_loras() == ()
    with pytest.raises(ValueError, match="enable_lora=True"):
        llm.generate("a", GREEDY, lora_request=poet)
    llm = small(enable_lora=True)
    with pytest.raises(ValueError, match="there are 1 prompts and 2 lora_requests"):
        llm.generate("a", GREEDY, lora_request=[poet, poet])
    for wrong in ("poet", ["poet"], 7):
        with pytest.raises(ValueError, match="lora_request must be a LoRARequest"):
            llm.generate("a", GREEDY, lora_request=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank 8 is more than max_lora_rank 4"):
        small(lora_modules={"clerk": adapters / "clerk"}, max_lora_rank=4)
    with pytest.raises(ValueError, match=r"lora_target_modules: the model has no 'x_proj'; it has .*q_proj"):
        small(enable_lora=True, lora_target_modules=["x_proj"])
    with pytest.raises(ValueError, match="does not have or that LoRA cannot change"):
        small(lora_modules={"poet": adapters / "poet"}, lora_target_modules=["k_proj"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "lora_name must be a name, got ''"),
        (("poet", 0), "lora_int_id must be an integer of at least 1, got 0"),
        (("poet", 1, None), "lora_path must be a folder's path, got None"),
    ],
)
def test_lora_requests_that_can_never_be(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoRARequest(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enable_lora": 1}, "enable_lora must be true or false, got 1"),
        ({"max_loras": 0}, "max_loras must be an integer of at least 1, got 0"),
        ({"max_lora_rank": None}, "max_lora_rank must be an integer of at least 1, got None"),
        ({"max_cpu_loras": -1}, "max_cpu_loras must be an integer of at least 0, got -1"),
        ({"lora_units": 7, "max_lora_rank": 64}, "lora_units 7 do not hold one adapter of max_lora_rank 64"),
        ({"lora_modules": ["poet=x"]}, r"lora_modules must map names to folders, got \['poet=x'\]"),
        ({"lora_modules": {"": "x"}}, "lora_modules must map names to folders"),
        ({"lora_target_modules": "q_proj"}, "lora_target_modules must be a list of names, got 'q_proj'"),
    ],
)
def test_arguments_that_can_never_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineArgs(model="tiny", **arguments)


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line_answers_with_an_adapter(adapters: Path) -> None:
    loras = [f"--lora-modules=poet={adapters / 'poet'}", f"--lora-modules=clerk={adapters / 'clerk'}"]
    common = [*loras, "--max-tokens=3", "--memory=16MiB", "--max-lora-rank=8"]
    for arguments in (["generate", "Hello"], ["generate", "--chat", "Hello", "--lora=clerk"], ["chat", "--prompt=Hi"]):
        done = CliRunner().invoke(app, [*arguments, *common])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lora-modules=poet"], "--lora-modules takes NAME=PATH with every name once, got 'poet'"),
        (["--lora-modules=a=x", "--lora-modules=a=y"], "with every name once, got 'a=y'"),
        (["--lora-modules=a=/nowhere"], "adapter 'a': /nowhere is no folder with an adapter"),
        (["--lora=poet"], "--lora 'poet' is none of the adapters of --lora-modules: there are none; add --lora-"),
        (['--lora-modules={"name": "a"}'], 'with every name once, got \'{"name": "a"}\''),
        (["--lora-modules={"], "with every name once, got '{'"),
        (['--lora-modules={"name": "a", "path": "/nowhere", "base_model_name": "b"}'], "adapter 'a': /nowhere is no"),
        (["--enable-lora", "--max-loras=0"], "max_loras must be an integer of at least 1, got 0"),
    ],
)
def test_the_command_line_says_what_is_wrong(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["generate", "Hello", "--memory=16MiB", *arguments])
    assert done.exit_code == 2 and message in done.output


@pytest.mark.parametrize("model", [["tiny"], ["--model=tiny"], []])
def test_serve_takes_several_adapters_after_one_flag_as_vllm_does(
    adapters: Path, monkeypatch: pytest.MonkeyPatch, model: list[str]
) -> None:
    served: list[list[str]] = []

    def stop(args: EngineArgs) -> None:
        served.append([str(args.model), *args.lora_modules])
        raise ValueError("far enough")

    monkeypatch.setattr("hybrid.engine_setup.set_up", stop)
    clerk = json.dumps({"name": "clerk", "path": str(adapters / "clerk")})
    values = [f"poet={adapters / 'poet'}", clerk]
    for flags in (["--lora-modules", *values], [f"--lora-modules={values[0]}", values[1]]):
        CliRunner().invoke(app, ["serve", *flags, "--port=0", *model])
    assert served == [["tiny", "poet", "clerk"]] * 2
