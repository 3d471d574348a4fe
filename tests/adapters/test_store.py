"""AdapterStore: generations, background reading, failures, what stays on the host, and many threads at once."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
import torch
from safetensors.torch import save_file

from hybrid.adapters.checkpoint import AdapterCheckpoint
from hybrid.adapters.store import AdapterState, AdapterStore
from hybrid.adapters.weights import AdapterWeights

from .peft_adapters import LLAMA_TARGETS, save_adapter, tiny_llama

NAME = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    save_adapter(tiny_llama(), folder, target_modules=["q_proj"], r=4)
    return folder


def new_store(max_cpu_loras: int | None = None) -> AdapterStore:
    return AdapterStore(LLAMA_TARGETS, max_lora_rank=16, max_cpu_loras=max_cpu_loras)


def state(store: AdapterStore, lora_id: int) -> AdapterState:
    return store.status(lora_id).state


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Event]:
    """Call it, and files are read only once the event that it returns is set."""

    def hold_back() -> Event:
        go = Event()
        read = AdapterCheckpoint.read

        def later(checkpoint: AdapterCheckpoint) -> AdapterWeights:
            assert go.wait(30)
            return read(checkpoint)

        monkeypatch.setattr(AdapterCheckpoint, "read", later)
        return go

    return hold_back


def test_a_name_stands_for_a_new_generation_at_every_load(adapter: Path) -> None:
    store = new_store()
    first = store.load("poet", adapter)
    second = store.load("poet", adapter)
    assert (first.name, first.rank) == ("poet", 4) and second.lora_id > first.lora_id
    assert store.get("poet") == second and store.names() == ("poet",) and store.path("poet") == adapter
    with pytest.raises(ValueError, match="is not loaded"):
        store.status(first.lora_id)
    assert store.unload("poet").done() and store.names() == ()
    for use in (store.get, store.unload, store.path):
        with pytest.raises(ValueError, match="'poet' is not loaded"):
            use("poet")
    assert store.load("poet", adapter).lora_id > second.lora_id


def test_weights_are_read_in_the_background(adapter: Path, reading: Callable[[], Event]) -> None:
    go = reading()
    store = new_store()
    loaded = store.load("poet", adapter)
    assert state(store, loaded.lora_id) is AdapterState.PENDING
    with pytest.raises(ValueError, match="weights of adapter 1 are not there"):
        store.weights(loaded.lora_id)
    go.set()
    store.wait(loaded.lora_id)
    assert state(store, loaded.lora_id) is AdapterState.READY
    assert store.weights(loaded.lora_id).modules[NAME].a.shape == (4, 16)


def test_what_is_wrong_at_once_changes_nothing(adapter: Path, tmp_path: Path) -> None:
    store = new_store()
    loaded = store.load("poet", adapter)
    with pytest.raises(ValueError, match=r"adapter 'poet': .* is no folder"):
        store.load("poet", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"an adapter's name has 1 to 256 characters .* got"):
        store.load("", adapter)
    with pytest.raises(ValueError, match="characters that can be printed"):
        store.load("poet\n", adapter)
    assert store.get("poet") == loaded


def test_a_generation_stays_while_it_is_held(adapter: Path) -> None:
    """Its name may go, or stand for another one: whoever runs goes on with it, and nobody new may start."""
    store = new_store()
    old = store.load("poet", adapter)
    store.hold(old.lora_id)
    store.hold(old.lora_id)
    new = store.load("poet", adapter)
    store.wait(old.lora_id)
    with pytest.raises(ValueError, match="adapter 'poet' was unloaded"):
        store.hold(old.lora_id)
    store.release(old.lora_id)
    assert store.weights(old.lora_id).rank == 4
    store.release(old.lora_id)
    with pytest.raises(ValueError, match="adapter 1 is not loaded"):
        store.weights(old.lora_id)
    store.hold(new.lora_id)
    gone = store.unload("poet")
    assert not gone.done() and not gone.cancel()
    store.release(new.lora_id)
    gone.result(timeout=0)
    with pytest.raises(ValueError, match="adapter 2 is not loaded"):
        store.hold(new.lora_id)


def test_a_name_changes_hands_when_its_new_weights_are_read(adapter: Path, reading: Callable[[], Event]) -> None:
    store = new_store()
    old = store.load("poet", adapter)
    store.wait(old.lora_id)
    go = reading()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(store.load_and_wait, "poet", adapter)
        while len(store._generations) < 2:
            pass
        assert store.get("poet") == old
        go.set()
        assert loading.result(30) == store.get("poet") != old
    assert len(store._generations) == 1


def test_what_cannot_be_read_leaves_the_older_one(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    old = store.load_and_wait("poet", adapter)

    def broken(checkpoint: AdapterCheckpoint) -> AdapterWeights:
        raise ValueError("its values are no numbers")

    monkeypatch.setattr(AdapterCheckpoint, "read", broken)
    with pytest.raises(ValueError, match="adapter 'poet': its values are no numbers"):
        store.load_and_wait("poet", adapter)
    assert store.get("poet") == old and store.weights(old.lora_id).rank == 4 and len(store._generations) == 1


def test_of_many_that_load_one_name_one_succeeds(adapter: Path) -> None:
    store = new_store()
    with ThreadPoolExecutor(16) as pool:
        loading = [pool.submit(store.load_and_wait, "poet", adapter, replace=False) for _ in range(16)]
    errors = [str(one.exception()) for one in loading if one.exception() is not None]
    assert errors == ["adapter 'poet' is loaded already"] * 15
    assert [one.result() for one in loading if one.exception() is None] == [store.get("poet")]
    assert len(store._generations) == 1


def test_a_failure_is_not_remembered(adapter: Path, tmp_path: Path, reading: Callable[[], Event]) -> None:
    folder = shutil.copytree(adapter, tmp_path / "copy")
    file = folder / "adapter_model.safetensors"
    go = reading()
    store = new_store()
    loaded = store.load("poet", folder)
    store.hold(loaded.lora_id)
    file.rename(tmp_path / "away")
    go.set()
    with pytest.raises(ValueError, match=r"adapter 'poet': .*cannot be read"):
        store.wait(loaded.lora_id)
    status = store.status(loaded.lora_id)
    assert status.state is AdapterState.FAILED and "cannot be read" in status.error
    (tmp_path / "away").rename(file)
    store.hold(loaded.lora_id)  # who comes later finds the same file there again
    store.wait(loaded.lora_id)
    assert state(store, loaded.lora_id) is AdapterState.READY
    again = store.load("poet", folder)
    store.wait(again.lora_id)
    assert again.lora_id > loaded.lora_id


def test_errors_that_nobody_expects_end_as_a_failure(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(checkpoint: AdapterCheckpoint) -> AdapterWeights:
        raise MemoryError

    monkeypatch.setattr(AdapterCheckpoint, "read", broken)
    store = new_store()
    loaded = store.load("poet", adapter)
    with pytest.raises(ValueError, match="adapter 'poet': MemoryError"):
        store.wait(loaded.lora_id)


def test_weights_that_nobody_holds_leave_the_host(adapter: Path, tmp_path: Path) -> None:
    """The least recently used goes first; it is read again when it is held."""
    store = new_store(max_cpu_loras=2)
    ids = []
    for name in ("a", "b", "c"):
        ids.append(store.load(name, adapter).lora_id)
        store.hold(ids[-1])
        store.wait(ids[-1])
    assert [state(store, lora_id) for lora_id in ids] == [AdapterState.READY] * 3  # held: all stay
    for lora_id in (ids[1], ids[0], ids[2]):
        store.release(lora_id)
    assert [state(store, lora_id).value for lora_id in ids] == ["ready", "pending", "ready"]
    store.hold(ids[1])
    store.wait(ids[1])
    assert store.weights(ids[1]).rank == 4
    store.release(ids[1])
    assert [state(store, lora_id).value for lora_id in ids] == ["pending", "ready", "ready"]


def test_a_generation_never_changes_its_values(adapter: Path, tmp_path: Path) -> None:
    """What left the host is not read from a file that has changed: it would meet the old one's cache."""
    folder = shutil.copytree(adapter, tmp_path / "copy")
    store = new_store(max_cpu_loras=0)
    loaded = store.load("poet", folder)
    store.hold(loaded.lora_id)
    store.wait(loaded.lora_id)
    tensors = {f"base_model.model.{NAME}.lora_{w}.weight": torch.ones(s) for w, s in (("A", (4, 16)), ("B", (16, 4)))}
    save_file(tensors, folder / "adapter_model.safetensors")
    assert store.weights(loaded.lora_id).modules[NAME].a.unique().numel() > 1
    store.release(loaded.lora_id)
    store.hold(loaded.lora_id)
    with pytest.raises(ValueError, match="has changed since the adapter was loaded; load it again"):
        store.wait(loaded.lora_id)
    new = store.load("poet", folder)
    store.hold(new.lora_id)
    store.wait(new.lora_id)
    assert store.weights(new.lora_id).modules[NAME].a.unique().numel() == 1


def test_a_generation_that_goes_while_it_is_read_leaves_nothing(adapter: Path, reading: Callable[[], Event]) -> None:
    go = reading()
    store = new_store()
    loaded = store.load("poet", adapter)
    store.unload("poet")
    go.set()
    later = store.load("other", adapter)
    store.wait(later.lora_id)
    with pytest.raises(ValueError, match="is not loaded"):
        store.status(loaded.lora_id)


def test_many_threads_at_once(adapter: Path) -> None:
    """Loads, unloads, holds and releases in any order: generations are unique, and what is held is there."""
    store = new_store(max_cpu_loras=1)

    def work(worker: int) -> list[int]:
        seen = []
        for turn in range(15):
            name = f"{(worker + turn) % 3}"
            loaded = store.load(name, adapter)
            seen.append(loaded.lora_id)
            try:
                store.hold(loaded.lora_id)
            except ValueError:  # another thread was faster with the name
                continue
            store.wait(loaded.lora_id)
            assert store.weights(loaded.lora_id).rank == 4
            if turn % 4 == 0 and name in store.names():
                with suppress(ValueError):
                    store.unload(name)
            assert state(store, loaded.lora_id) is AdapterState.READY
            store.release(loaded.lora_id)
        return seen

    with ThreadPoolExecutor(6) as pool:
        ids = [lora_id for seen in pool.map(work, range(6)) for lora_id in seen]
    assert len(set(ids)) == 90
    assert len(store._generations) == len(store.names()) <= 3
