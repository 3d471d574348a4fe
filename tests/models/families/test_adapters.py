"""Adapters of several ranks and none, in one batch, compute what transformers computes with peft, in every family.

Every adapter changes all modules that peft can adapt: projections, experts, tables, head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybrid import LLM, LoRARequest, RequestOutput
from hybrid.adapters.checkpoint import open_adapter
from hybrid.adapters.naming import ModuleNames
from hybrid.models.loading import open_checkpoint
from hybrid.pools.sizing import lora_units
from hybrid.runner.encoder_lora import EncoderLora
from hybrid.runner.loading import load
from hybrid.runner.lora_cache import LoraCache
from hybrid.scheduler.plan import LoadAdapter
from tests.adapters.peft_adapters import decoder_modules, expert_parameters, save_adapter
from tests.models.forward import chunked_logits

from .oracle import Oracle, all_cases, exporter
from .test_families import GREEDY, MAX_TOKENS, TOLERANCE

MAX_RANK = 128  # where gate and up of experts are one target, their ranks add up
ALPHAS = {1: 2, 4: 4, 8: 6, 64: 16}  # by rank: a change about half as large as the weight itself
FIRST_CASES = {name.split(":")[0]: name for name in reversed(list(all_cases()))}
SHARED = {"zamba2"}  # peft adapts every use of its shared blocks by itself: refused, see tests/adapters
# Their dt_proj is multiplied by weight, not called, in transformers, which so ignores what peft put in its place.
READS_WEIGHTS = {"falcon_mamba", "jamba", "mamba"}
LENGTHS = (1, 6, 17, 33, 48)

Tokens = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Adapted:
    """The base model, and the same with each adapter: transformers' models, and the adapters' folders by rank."""

    base: Oracle
    oracles: dict[int, Oracle]
    folders: dict[int, Path]

    def of(self, rank: int) -> Oracle:
        return self.oracles[rank] if rank else self.base

    def units(self, rank: int) -> int:
        """Rank units of an adapter."""
        names = ModuleNames(open_checkpoint(self.base.folder).model.lora_targets())
        return lora_units(open_adapter(self.folders[rank], names, MAX_RANK).rank)


@pytest.fixture(scope="module", params=sorted(FIRST_CASES.keys() - SHARED))
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    case = FIRST_CASES[request.param]
    folder = tmp_path_factory.mktemp("checkpoint")
    base = Oracle(all_cases()[case], folder / "model", export=exporter(case))
    ignored = "dt_proj" if request.param in READS_WEIGHTS else "none"
    modules = [name for name in decoder_modules(base.model) if not name.endswith(ignored)]
    oracles, folders = {}, {}
    for rank, alpha in ALPHAS.items():
        oracles[rank] = Oracle(all_cases()[case], folder / f"again{rank}", export=exporter(case))
        folders[rank] = folder / f"rank{rank}"
        save_adapter(
            oracles[rank].model,
            folders[rank],
            r=rank,
            lora_alpha=alpha,
            target_modules=modules,
            target_parameters=expert_parameters(base.model) or None,
        )
    return Adapted(base, oracles, folders)


RANKS = (0, 64, 1, 8, 4)  # of the rows of a batch; 0: no adapter


@pytest.fixture(scope="module")
def prompts(adapted: Adapted) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(2, adapted.base.vocab_size, length).tolist() for length in LENGTHS]


def engine(adapted: Adapted, **arguments: Any) -> LLM:
    """Room for all adapters at once, unless `lora_units` says otherwise."""
    defaults = {"memory": "64MiB", "max_model_len": 128, "block_size": 8, "max_num_seqs": 6}
    defaults |= {"max_lora_rank": 8 * adapted.units(64), "lora_units": sum(map(adapted.units, ALPHAS))}
    modules = {f"rank{rank}": folder for rank, folder in adapted.folders.items()}
    arguments = {"skip_tokenizer_init": True, "lora_modules": modules, **defaults, **arguments}
    return LLM(adapted.base.folder, dtype="float32", **arguments)


def generate(llm: LLM, prompts: Sequence[Sequence[int]], ranks: Sequence[int]) -> list[RequestOutput]:
    wanted = [LoRARequest(f"rank{rank}") if rank else None for rank in ranks]
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return llm.generate(given, GREEDY, use_tqdm=False, lora_request=wanted)


def tokens(outputs: Sequence[RequestOutput]) -> Tokens:
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected(adapted: Adapted, prompts: list[list[int]]) -> Tokens:
    """One after the other, whole prompts, no cache."""
    llm = engine(adapted, max_num_seqs=1, enable_prefix_caching=False)
    return tokens(generate(llm, prompts, RANKS))


@pytest.mark.parametrize("schedule", [[[1, 30, 30, 40, 9]], [[1, 1, 7, 5, 2], [1, 1, 2, 23, 4], [1, 1, 1, 1, 17]]])
def test_logits_of_every_position(adapted: Adapted, schedule: list[list[int]]) -> None:
    loaded = load(adapted.base.folder, torch.float32)
    decoder = loaded.decoder
    model = open_checkpoint(adapted.base.folder).model
    targets = model.lora_targets()
    seeing = EncoderLora({} if loaded.encoder is None else loaded.encoder.projections, targets)
    cache = LoraCache((*decoder.lora_sites, *seeing.sites), targets, 24, torch.float32, torch.device("cpu"))
    assert cache.num_bytes == 24 * model.lora_bytes_per_unit("float32")  # every target has its site
    units: dict[int, list[int]] = {0: []}
    for rank in ALPHAS:
        taken = sum(map(len, units.values()))
        weights = open_adapter(adapted.folders[rank], ModuleNames(targets), MAX_RANK).read()
        units[rank] = list(range(taken, taken + lora_units(weights.rank)))
        cache.load(LoadAdapter(rank, np.array(units[rank])), weights)
    most = max(map(len, units.values()))
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, adapted.base.vocab_size, n).tolist() for n in np.sum(schedule, axis=0)]
    table = [units[rank] + [-1] * (most - len(units[rank])) for rank in RANKS]
    for rank, row, logits in zip(RANKS, rows, chunked_logits(decoder, rows, schedule, table)):
        reference = adapted.of(rank).logits(row)
        error = (logits - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)
        assert float(error.max()) < TOLERANCE, f"rank {rank}"
        if rank:  # and the adapter matters
            assert float((reference - adapted.base.logits(row)).abs().max()) > 0.01


def test_greedy_tokens_are_those_of_peft(adapted: Adapted, prompts: list[list[int]], expected: Tokens) -> None:
    for rank, prompt, output in zip(RANKS, prompts, expected):
        assert len(output) == MAX_TOKENS
        assert adapted.of(rank).is_greedy(prompt, output)


def test_one_batch_in_chunks(adapted: Adapted, prompts: list[list[int]], expected: Tokens) -> None:
    llm = engine(adapted, long_prefill_token_threshold=5, max_num_batched_tokens=32, max_plans_in_flight=2)
    assert tokens(generate(llm, prompts, RANKS)) == expected


def test_resume_points_belong_to_an_adapter(adapted: Adapted, prompts: list[list[int]], expected: Tokens) -> None:
    """The same prompt with another adapter hits nothing; with the same one, all but its last token."""
    llm = engine(adapted, num_state_slots=80, num_full_blocks=300, num_window_blocks=300)
    assert tokens(generate(llm, prompts, RANKS)) == expected
    again = generate(llm, prompts, RANKS)
    assert tokens(again) == expected
    assert [output.num_cached_tokens for output in again] == [length - 1 for length in LENGTHS]
    others = generate(llm, prompts, (RANKS[-1], *RANKS[:-1]))
    assert [output.num_cached_tokens for output in others] == [0] * len(LENGTHS)


def test_retraction_eviction_and_reload(adapted: Adapted, prompts: list[list[int]], expected: Tokens) -> None:
    """Room for the largest adapter alone: the others go and come back."""
    llm = engine(adapted, lora_units=adapted.units(64), force_retraction_every=3, max_num_batched_tokens=48)
    for _ in range(2):
        assert tokens(generate(llm, prompts, RANKS)) == expected
    assert llm.stats().retractions > 20
    name, folder = "rank8", adapted.folders[1]
    llm.unload_lora_adapter(name)
    llm.load_lora_adapter(name, folder)  # other weights under the same name
    reloaded = tokens(generate(llm, prompts, RANKS))
    place = RANKS.index(8)
    assert adapted.of(1).is_greedy(prompts[place], reloaded[place])
    assert reloaded[:place] + reloaded[place + 1 :] == expected[:place] + expected[place + 1 :]


def test_step_sizes_of_mamba_are_those_of_the_merged_model(tmp_path: Path) -> None:
    case = FIRST_CASES["jamba"]
    merged = Oracle(all_cases()[case], tmp_path / "model")
    options = {"target_modules": ["dt_proj"], "r": 8, "lora_alpha": 60}
    merged.model = save_adapter(merged.model, tmp_path / "adapter", **options).merge_and_unload()
    llm = LLM(tmp_path / "model", dtype="float32", skip_tokenizer_init=True, memory="64MiB", enable_lora=True)
    prompt = list(range(5, 30))
    lora = LoRARequest("steps", 1, str(tmp_path / "adapter"))
    changed, base = (
        tokens(llm.generate([{"prompt_token_ids": prompt}], GREEDY, use_tqdm=False, lora_request=request))[0]
        for request in (lora, None)
    )
    assert merged.is_greedy(prompt, changed) and changed != base
