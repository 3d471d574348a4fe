"""Adapters of what sees images: several, and none, on the same picture in one batch, compute what peft computes.

A picture is encoded once for all who see it alike, and once for each generation of an adapter that sees it otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hybrid import LLM, LoRARequest
from hybrid.adapters.checkpoint import AdapterCheckpoint, open_adapter
from hybrid.adapters.naming import ModuleNames
from hybrid.adapters.store import AdapterStore
from hybrid.adapters.weights import AdapterWeights
from hybrid.engine import Engine
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import Setup, set_up
from hybrid.frontend.messages import read_conversation
from hybrid.pools.sizing import lora_units
from hybrid.runner.encoder_lora import EncoderLora
from hybrid.runner.loading import load
from hybrid.runner.lora_cache import LoraCache
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import LoadAdapter
from tests.adapters.peft_adapters import LLAMA_TARGETS, OTHERS, decoder_modules, save_adapter
from tests.adapters.written import write_adapter

from .oracle import Chat, Oracle, all_cases
from .test_families import (
    CHATS,
    FIRST,
    MAX_TOKENS,
    SECOND,
    TOLERANCE,
    all_logits,
    num_encoded,
    process,
    tokens,
)

CASES = ("gemma3: windows", "llava: CLIP", "qwen2_5_vl: windows")
TOWER, BOTH, WORDS = "tower", "both", "words"  # what an adapter changes
RANKS = {TOWER: 4, BOTH: 11, WORDS: 8}
SEEING = (TOWER, BOTH)
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapted:
    """transformers' model, and the same under each adapter, whose folder lies beside it."""

    oracles: dict[str | None, Oracle]
    folders: dict[str, Path]

    @property
    def model(self) -> Path:
        return self.oracles[None].folder


@pytest.fixture(scope="module", params=CASES)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    folder = tmp_path_factory.mktemp("checkpoint")
    oracles: dict[str | None, Oracle] = {None: Oracle(all_cases()[request.param], folder / "model")}
    seeing, words = seeing_modules(oracles[None].model), decoder_modules(oracles[None].model)
    folders = {}
    for name, modules in ((TOWER, seeing), (BOTH, [*seeing, *words]), (WORDS, words)):
        oracles[name] = Oracle(all_cases()[request.param], folder / f"model of {name}")
        folders[name] = folder / name
        save_adapter(oracles[name].model, folders[name], r=RANKS[name], lora_alpha=4, target_modules=modules)
    return Adapted(oracles, folders)


def seeing_modules(model: nn.Module) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and OTHERS.search(name)]


def engine(adapted: Adapted, **arguments: Any) -> LLM:
    defaults = {"memory": "16MiB", "max_model_len": 512, "block_size": 8, "max_num_seqs": 6, "max_lora_rank": 16}
    arguments = {"lora_modules": adapted.folders, **defaults, **arguments}
    return LLM(adapted.model, dtype="float32", **arguments)


def greedy(adapted: Adapted) -> SamplingParams:
    never = {adapted.oracles[None].image_token_id: -100.0}
    return SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logit_bias=never)


def chat(llm: LLM, adapted: Adapted, chats: Sequence[Chat], names: Sequence[str | None]) -> list[Tokens]:
    requests = [None if name is None else LoRARequest(name) for name in names]
    return tokens(llm.chat(list(chats), greedy(adapted), use_tqdm=False, lora_request=requests))


# The same picture under every adapter and none, and other pictures and none beside it.
BATCH = [
    *[(FIRST, name) for name in (None, TOWER, BOTH, WORDS)],
    (SECOND, TOWER),
    (CHATS[0], TOWER),
    (SECOND, None),
    (CHATS[0], BOTH),
    (FIRST, TOWER),
]
BATCH_CHATS, BATCH_NAMES = [messages for messages, _ in BATCH], [name for _, name in BATCH]


@pytest.fixture(scope="module")
def expected(adapted: Adapted) -> list[Tokens]:
    """One at a time, whole prompts, nothing cached."""
    llm = engine(adapted, max_num_seqs=1, enable_prefix_caching=False)
    return chat(llm, adapted, BATCH_CHATS, BATCH_NAMES)


def entries(llm: LLM, messages: Chat) -> int:
    """Of the encoder pool."""
    return len(process(llm, messages).images)


def test_greedy_tokens_are_those_of_peft(adapted: Adapted, expected: list[Tokens]) -> None:
    for (messages, name), output in zip(BATCH, expected):
        assert len(output) == MAX_TOKENS
        assert adapted.oracles[name].is_greedy(messages, output), name
    assert len(set(expected[:4])) == 4  # every adapter matters


@pytest.mark.parametrize("adapted", list(all_cases()), indirect=True)
def test_logits_of_every_position_in_every_family(adapted: Adapted) -> None:
    loaded = load(adapted.model, torch.float32)
    assert loaded.encoder is not None
    targets = loaded.model.lora_targets()
    seeing = EncoderLora(loaded.encoder.projections, targets)
    cache = LoraCache((*loaded.decoder.lora_sites, *seeing.sites), targets, 8, torch.float32, torch.device("cpu"))
    assert cache.num_bytes == 8 * loaded.model.lora_bytes_per_unit("float32")  # every target has its site
    llm = engine(adapted)
    taken = 0
    for lora_id, (name, folder) in enumerate(adapted.folders.items(), 1):
        weights = open_adapter(folder, ModuleNames(targets), 16).read()
        units = list(range(taken, taken + lora_units(weights.rank)))
        taken += len(units)
        cache.load(LoadAdapter(lora_id, np.array(units)), weights)
        for messages in (FIRST, SECOND):
            with seeing.applied(np.array(units)):
                logits = all_logits(loaded, process(llm, messages), 23, units)
            reference = adapted.oracles[name].logits(messages)
            error = (logits - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)
            assert float(error.max()) < TOLERANCE, name
            assert float((reference - adapted.oracles[None].logits(messages)).abs().max()) > 0.01


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"long_prefill_token_threshold": 17, "max_num_batched_tokens": 33},
        {"force_retraction_every": 3, "max_num_batched_tokens": 64},
        {"max_plans_in_flight": 2, "max_num_batched_tokens": 48},
        {"lora_units": 2},  # the largest alone: they take turns
    ],
    ids=lambda arguments: next(iter(arguments), "whole prompts"),
)
def test_mixed_batches(adapted: Adapted, expected: list[Tokens], arguments: dict[str, Any]) -> None:
    llm = engine(adapted, **arguments)
    assert chat(llm, adapted, BATCH_CHATS, BATCH_NAMES) == expected
    assert chat(llm, adapted, BATCH_CHATS[::-1], BATCH_NAMES[::-1]) == expected[::-1]  # with what is cached
    llm.engine.scheduler.check()


def test_a_picture_is_encoded_once_for_all_who_see_it_alike(adapted: Adapted, expected: list[Tokens]) -> None:
    llm = engine(adapted, enable_prefix_caching=False)
    names = [None, WORDS, None, TOWER, WORDS, TOWER, BOTH]
    outputs = chat(llm, adapted, [FIRST] * len(names), names)
    assert outputs == [expected[BATCH_NAMES.index(name)] for name in names]
    assert num_encoded(llm) == 3 * entries(llm, FIRST)
    assert chat(llm, adapted, [FIRST] * 4, BATCH_NAMES[:4]) == expected[:4]
    assert num_encoded(llm) == 3 * entries(llm, FIRST)


def test_the_next_turn_hits_under_its_own_adapter_alone(adapted: Adapted, expected: list[Tokens]) -> None:
    llm = engine(adapted)
    requests = [LoRARequest(TOWER), LoRARequest(TOWER), LoRARequest(BOTH), None]
    first, second, other, base = (
        llm.chat([messages], greedy(adapted), use_tqdm=False, lora_request=request)[0]
        for messages, request in zip((FIRST, SECOND, FIRST, FIRST), requests)
    )
    assert tokens([first, second, other, base]) == [expected[1], expected[4], expected[2], expected[0]]
    image = process(llm, FIRST).images[-1]
    assert second.num_cached_tokens >= image.offset + image.num_tokens
    assert (first.num_cached_tokens, other.num_cached_tokens, base.num_cached_tokens) == (0, 0, 0)


def test_another_adapter_under_the_same_name_never_meets_old_embeddings(
    adapted: Adapted, expected: list[Tokens]
) -> None:
    llm = engine(adapted, lora_modules={}, enable_lora=True)
    once = entries(llm, FIRST)
    llm.load_lora_adapter("one", adapted.folders[TOWER])
    assert chat(llm, adapted, [FIRST], ["one"]) == [expected[1]]
    assert num_encoded(llm) == once
    llm.load_lora_adapter("one", adapted.folders[BOTH])
    assert chat(llm, adapted, [FIRST], ["one"]) == [expected[2]]
    assert num_encoded(llm) == 2 * once
    llm.unload_lora_adapter("one")
    llm.load_lora_adapter("one", adapted.folders[TOWER])
    assert chat(llm, adapted, [FIRST, FIRST], ["one", None]) == [expected[1], expected[0]]
    assert num_encoded(llm) == 4 * once
    llm.load_lora_adapter("one", adapted.folders[WORDS])
    assert chat(llm, adapted, [FIRST], ["one"]) == [expected[3]]
    assert num_encoded(llm) == 4 * once


# --- step by step ------------------------------------------------------------------------------------------------


def started(adapted: Adapted, **arguments: Any) -> tuple[Setup, AdapterStore]:
    """An engine that is driven by hand."""
    setup = set_up(
        EngineArgs(
            model=adapted.model,
            dtype="float32",
            memory="16MiB",
            max_model_len=512,
            enable_lora=True,
            max_lora_rank=16,
            **arguments,
        )
    )
    assert setup.engine.adapters is not None
    return setup, setup.engine.adapters


def add(setup: Setup, adapted: Adapted, name: str, messages: Chat, lora_name: str) -> None:
    prompt = setup.processor.process_chat(read_conversation(messages))
    adapter = setup.engine.adapters.get(lora_name) if setup.engine.adapters is not None else None
    setup.engine.add_request(name, prompt, greedy(adapted), max_tokens=MAX_TOKENS, adapter=adapter)


def run(engine: Engine) -> Tokens:
    """All tokens that come until nothing runs."""
    found: list[int] = []
    while engine.has_unfinished:
        for update in engine.step():
            assert update.error is None
            found += update.token_ids
    return tuple(found)


def test_a_request_whose_adapter_is_not_read_holds_nothing(
    adapted: Adapted, expected: list[Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, read = Event(), AdapterCheckpoint.read

    def later(checkpoint: AdapterCheckpoint) -> AdapterWeights:
        assert go.wait(30)
        return read(checkpoint)

    monkeypatch.setattr(AdapterCheckpoint, "read", later)
    setup, store = started(adapted)
    adapter = store.load("late", adapted.folders[TOWER])
    add(setup, adapted, "request", FIRST, "late")
    for _ in range(3):
        assert setup.engine.step() == []
    ledgers = setup.engine.scheduler.stats().ledgers
    assert all(ledger.free == ledger.total for ledger in ledgers.values())
    go.set()
    store.wait(adapter.lora_id)
    assert run(setup.engine) == expected[1]


def test_who_runs_when_the_name_goes_sees_its_other_pictures_alike(adapted: Adapted, expected: list[Tokens]) -> None:
    setup, store = started(adapted, max_cpu_loras=0, max_num_seqs=1, max_num_batched_tokens=32)
    store.load_and_wait("going", adapted.folders[TOWER])
    add(setup, adapted, "request", SECOND, "going")
    while not setup.runner.num_encoded_images:
        assert setup.engine.step() == []
    before = setup.runner.num_encoded_images
    store.unload("going")
    assert run(setup.engine) == expected[4]
    assert setup.runner.num_encoded_images > before


def test_the_pool_counts_their_bytes(adapted: Adapted) -> None:
    setup, _ = started(adapted, max_loras=3)
    assert setup.runner.lora is not None
    assert setup.runner.lora.num_bytes == setup.pool_bytes["LoRA"]
    without, _ = started(adapted, max_loras=3, limit_mm_per_prompt={"image": 0})
    assert without.pool_bytes["LoRA"] < setup.pool_bytes["LoRA"]


# --- what is refused -----------------------------------------------------------------------------------------------


def refused(adapted: Adapted, folder: Path, message: str, **arguments: Any) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        engine(adapted, lora_modules={"wrong": folder}, **arguments)
    assert str(caught.value).startswith("adapter 'wrong': ") and "\n" not in str(caught.value)


def test_modules_that_are_not_there(adapted: Adapted, tmp_path: Path) -> None:
    """Nor are tables of positions, and what is no linear module, as Gemma 3's connector."""
    there = seeing_modules(adapted.oracles[None].model)[0]
    absent = there.replace(".0.", ".99.")
    assert absent != there
    for name in (absent, "model.vision_tower.embeddings.position_embedding", "model.multi_modal_projector"):
        folder = write_adapter(tmp_path / "absent", {name: (8, 8)})
        refused(adapted, folder, f"it changes modules that the model does not have or .*: {name}$")
    folder = write_adapter(tmp_path / "shape", {there: (7, 9)})
    refused(adapted, folder, rf"{there}\.lora_A\.weight has shape \[4, 9\], expected")


def test_who_sees_no_images_has_no_such_modules(adapted: Adapted) -> None:
    """A model without images, one of a server that allows none, and one whose adapters may change other modules."""
    folder = adapted.folders[TOWER]
    refused(adapted, folder, "it changes modules that the model does not have", limit_mm_per_prompt={"image": 0})
    refused(adapted, folder, "it changes modules that the model does not have", lora_target_modules=["lm_head"])
    with pytest.raises(ValueError, match="it changes modules that the model does not have"):
        AdapterStore(LLAMA_TARGETS).load("wrong", folder)
