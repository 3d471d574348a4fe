"""Many more adapters than there is room for, through the real engine: everybody gets its answer, in bounded time."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from hybrid.adapters.adapter import Adapter
from hybrid.adapters.store import AdapterStore
from hybrid.checkpoints import find_checkpoint
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import Setup, set_up
from hybrid.models.loading import read_config
from hybrid.sampling_params import SamplingParams

from .adapters.written import write_adapter

NUM_ADAPTERS, NUM_REQUESTS, UNITS = 200, 400, 4
ROWS, MAX_SKIPS, MAX_TOKENS = 16, 8, 6
RANKS = (1, 8, 4, 8, 2, 8, 16, 8, 3, 32)  # of units: 1, except for 16, which takes 2, and 32, which takes them all
PROMPTS = (
    "How many shapes are there in the picture, and which of them is red?",
    "How many shapes are there in the picture, and what is on the left?",
    "Say hello.",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
Key = tuple[Path, str]  # an adapter's folder and a prompt
TokenIds = tuple[int, ...]


def start(max_cpu_loras: int | None = None, enable_prefix_caching: bool = True) -> Setup:
    return set_up(
        EngineArgs(
            model="tiny",
            memory="16MiB",
            max_model_len=256,
            max_num_seqs=ROWS,
            enable_lora=True,
            max_lora_rank=8 * UNITS,
            lora_units=UNITS,
            max_cpu_loras=max_cpu_loras,
            enable_prefix_caching=enable_prefix_caching,
            num_threads=1,
            scheduler={"max_skips": MAX_SKIPS},
        )
    )


def store_of(setup: Setup) -> AdapterStore:
    assert setup.engine.adapters is not None
    return setup.engine.adapters


@dataclass
class Traffic:
    """Requests through an engine whose ledgers are checked after every step. `step`: how many there were."""

    setup: Setup
    step_number: int = 0
    outputs: dict[str, list[int]] = field(default_factory=dict)  # by request, in the order in which they came
    arrived: dict[str, int] = field(default_factory=dict)  # -> step
    begun: dict[str, int] = field(default_factory=dict)  # -> step with the first token
    finished: list[str] = field(default_factory=list)

    def add(self, name: str, text: str, adapter: Adapter | None) -> None:
        self.outputs[name] = []
        self.arrived[name] = self.step_number
        prompt = self.setup.processor.process(text)
        self.setup.engine.add_request(name, prompt, GREEDY, max_tokens=MAX_TOKENS, adapter=adapter)

    def step(self) -> None:
        engine = self.setup.engine
        self.step_number += 1
        for update in engine.step():
            self.outputs[update.request_id] += update.token_ids
            self.begun.setdefault(update.request_id, self.step_number)
            if update.finish_reason is not None:
                assert update.finish_reason == "length", update.error
                self.finished.append(update.request_id)
        engine.scheduler.check()
        ledgers = engine.scheduler.stats().ledgers
        for ledger in ledgers.values():
            assert ledger.free + ledger.reserved + ledger.held + ledger.cached + ledger.pinned + ledger.pending == (
                ledger.total
            )
        assert ledgers["LoRA"].total == UNITS

    def run(self) -> None:
        while self.setup.engine.has_unfinished:
            self.step()
        assert sorted(self.finished) == sorted(self.outputs)
        for ledger in self.setup.engine.scheduler.stats().ledgers.values():
            assert ledger.free + ledger.cached == ledger.total

    def answer(self, name: str) -> TokenIds:
        return tuple(self.outputs[name])


def alone(keys: Iterable[Key]) -> dict[Key, TokenIds]:
    """What each adapter answers when there is no other, and nothing is cached."""
    setup = start(enable_prefix_caching=False)
    prompts: dict[Path, dict[str, None]] = defaultdict(dict)
    for folder, text in keys:
        prompts[folder][text] = None
    answers: dict[Key, TokenIds] = {}
    for folder, texts in prompts.items():
        adapter = store_of(setup).load("only", folder)
        traffic = Traffic(setup)
        for text in texts:
            traffic.add(text, text, adapter)
        traffic.run()
        answers |= {(folder, text): traffic.answer(text) for text in texts}
    return answers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Adapters of attention and of the recurrent layers, each with answers of its own."""
    root = tmp_path_factory.mktemp("many")
    return [adapter_folder(root / str(i), RANKS[i % len(RANKS)], seed=i) for i in range(NUM_ADAPTERS)]


def adapter_folder(folder: Path, rank: int, seed: int) -> Path:
    targets = read_config(find_checkpoint("tiny")).lora_targets()
    wanted = ("layers.1.mixer.q_proj", "layers.1.mixer.v_proj", "layers.2.mixer.out_proj", "layers.6.mlp.down_proj")
    return write_adapter(folder, {name: targets[name] for name in wanted}, rank, seed)


@pytest.fixture(scope="module")
def wanted(folders: Sequence[Path]) -> list[Key]:
    """Who asks what: a few adapters are popular, most are asked once or never."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, NUM_ADAPTERS + 1)
    picks = rng.choice(NUM_ADAPTERS, NUM_REQUESTS, p=weights / weights.sum()).tolist()
    return [(folders[pick], PROMPTS[int(rng.integers(len(PROMPTS)))]) for pick in picks]


@pytest.fixture(scope="module")
def expected(wanted: list[Key]) -> dict[Key, TokenIds]:
    answers = alone(dict.fromkeys(wanted))
    for text in PROMPTS:  # else a mix-up of adapters would not show
        said = [answer for (_, asked), answer in answers.items() if asked == text]
        assert len(said) > 40 and len(set(said)) > 0.9 * len(said)
    return answers


@pytest.mark.parametrize("max_cpu_loras", [None, 10])
def test_room_for_four_of_two_hundred(
    folders: Sequence[Path], wanted: list[Key], expected: dict[Key, TokenIds], max_cpu_loras: int | None
) -> None:
    setup = start(max_cpu_loras)
    store = store_of(setup)
    adapters = {folder: store.load(folder.name, folder) for folder in folders}
    assert len(store.names()) == NUM_ADAPTERS
    traffic = Traffic(setup)
    for number, (folder, text) in enumerate(wanted):
        traffic.add(str(number), text, adapters[folder])
        store.wait(adapters[folder].lora_id)  # threads have their own time: gates are no part of what is counted
        if number >= NUM_REQUESTS // 4:
            traffic.step()
    traffic.run()
    for number, key in enumerate(wanted):
        assert traffic.answer(str(number)) == expected[key], f"request {number} of {key}"
    assert_nobody_starved(traffic)
    shared = setup.engine.scheduler.stats().shared["LoRA"]
    assert shared.evictions > 50 and shared.hits > 50


def assert_nobody_starved(traffic: Traffic) -> None:
    """Everybody is overtaken by few, and whoever is first in line waits for few to end."""
    begun = [traffic.begun[name] for name in traffic.outputs]
    arrived = [traffic.arrived[name] for name in traffic.outputs]
    # `max_skips` is looked at before a step admits as many as there are rows
    overtaken = [sum(later < mine for later in begun[place + 1 :]) for place, mine in enumerate(begun)]
    assert 0 < max(overtaken) <= MAX_SKIPS + ROWS
    # each that passes may keep its adapter for as long as it runs, and a prompt may wait a step for its sibling
    first_in_line = np.maximum(np.maximum.accumulate([0, *begun[:-1]]), arrived)
    waits = np.array(begun) - first_in_line
    assert waits.max() <= (MAX_SKIPS + 1) * (MAX_TOKENS + 2), f"{waits.max()} steps"


def test_an_old_answer_never_comes_back(tmp_path: Path) -> None:
    """One folder, rewritten; one name, loaded anew while those that asked before still run, and while some wait."""
    versions = [adapter_folder(tmp_path / f"version {i}", 8 if i % 2 else 16, seed=1000 + i) for i in range(6)]
    expected = alone((folder, text) for folder in versions for text in PROMPTS)
    for text in PROMPTS:
        assert len({expected[folder, text] for folder in versions}) == len(versions)
    traffic = Traffic(setup := start(max_cpu_loras=0))
    store = store_of(setup)
    asked: dict[str, Key] = {}
    for number, version in enumerate(versions):
        adapter_folder(tmp_path / "poet", 8 if number % 2 else 16, seed=1000 + number)
        if number % 3 == 2:
            store.unload("poet")
        adapter = store.load("poet", tmp_path / "poet")
        for again in range(6):
            name = f"{number}, {again}"
            asked[name] = version, PROMPTS[again % len(PROMPTS)]
            traffic.add(name, asked[name][1], adapter)
        store.wait(adapter.lora_id)  # before the next version is written over it
        while number % 2 and f"{number}, 0" not in traffic.begun:
            traffic.step()
        assert f"{number}, 5" not in traffic.finished
    assert setup.engine.scheduler.stats().num_running and setup.engine.scheduler.stats().num_waiting
    traffic.run()
    for name, key in asked.items():
        assert traffic.answer(name) == expected[key], name
