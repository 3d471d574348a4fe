"""Steps that only decode, padded to the sizes of graphs: they do what such a step does alone, and padding does nothing.

Without a GPU nothing is captured: the same function runs over the same buffers and tables.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from examples.lora_serving import ADAPTERS
from hybrid import LLM, LoRARequest, engine_setup
from hybrid.models.context import AttentionCache, Context, DecodeContext, StateCache
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights
from hybrid.pools.specs import FullAttentionSpec
from hybrid.runner import model_runner
from hybrid.runner.decode_graphs import batch_sizes, decodes_only
from hybrid.runner.loading import load
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import ImageSpan, StepPlan
from tests.models.families.oracle import Oracle, all_cases
from tests.runner.plans import PlanDriver, RandomAdapters, random_reference, runner_sizes, small_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN = float("nan")
PADDING = 0  # the token of rows that are nobody's
GREEDY = SamplingParams(temperature=0.0, logit_bias={PADDING: -100.0})


class Watched(Decoder):
    """`outputs` of the decode steps, by their number of rows."""

    outputs: dict[int, torch.Tensor]

    def forward(self, context: Context) -> torch.Tensor:
        hidden = super().forward(context)
        if isinstance(context, DecodeContext):
            self.outputs[len(hidden)] = hidden
        return hidden


def poisoned_model(mixers: str) -> Watched:
    """The padding's embedding, and with it whatever its rows compute, is NaN."""
    reference = random_reference(small_config(mixers, tie_word_embeddings=False))
    with torch.no_grad():
        reference.embed_tokens.weight[PADDING] = NAN
    model = Watched(read_model(reference.config.to_dict()), Weights(reference.state_dict(), torch.float32, DEVICE))
    model.outputs = {}
    return model


def small_targets(mixers: str) -> dict[str, tuple[int, ...]]:
    """What adapters may change in `poisoned_model`."""
    return read_model(small_config(mixers, tie_word_embeddings=False).to_dict()).lora_targets()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 61, length)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """NaN equals NaN."""
    return tensor.view(torch.int32)


def written_by(plan: StepPlan, runner: ModelRunner) -> list[torch.Tensor]:
    """Of every tensor of the caches, what the plan's decode rows may write: where their token goes, and their slots."""
    mirror, size = runner.mirror, runner.sizes.block_size
    kinds = [kind for layer in runner._model.spec.layers for kind in layer]
    masks = []
    for cache, kind in zip(runner.caches.layers, kinds):
        if isinstance(cache, AttentionCache):
            mask = torch.zeros_like(cache.kv, dtype=torch.bool)
            table = mirror.full_table if isinstance(kind, FullAttentionSpec) else mirror.window_table
            logical, offset = np.divmod(plan.num_computed_tokens, size)
            for block, place in zip(table[plan.rows, logical].tolist(), offset.tolist()):
                mask[block, :, :, place] = True
            masks.append(mask)
        else:
            for states in (cache.conv, cache.ssm):
                mask = torch.zeros_like(states, dtype=torch.bool)
                mask[torch.from_numpy(mirror.state_slot[plan.rows]).to(DEVICE)] = True
                masks.append(mask)
    return masks


def tensors(runner: ModelRunner) -> list[torch.Tensor]:
    """In the order of `written_by`."""
    found = []
    for cache in runner.caches.layers:
        found += [cache.conv, cache.ssm] if isinstance(cache, StateCache) else [cache.kv]
    return found


RANKS = {1: 5, 2: 20, 3: 0, 4: 8}  # of adapters
UNITS = {1: [7], 2: [2, 9, 4], 3: [5], 4: [0]}  # where they lie, in a pool of 12


def adapted_driver(
    model: Decoder, targets: Mapping[str, tuple[int, ...]], decode_graphs: bool, **of_pools: int
) -> PlanDriver:
    """With adapters in some of the pool's rank units; NaN in the others, and in those of one that changes nothing."""
    adapters, sizes = RandomAdapters(targets, RANKS), runner_sizes(**{"lora_units": 12, "max_model_len": 48} | of_pools)
    driver = PlanDriver(
        model, sizes, device=DEVICE, decode_graphs=decode_graphs, adapters=adapters, lora_targets=targets
    )
    for lora_id, units in UNITS.items():
        driver.load(lora_id, units)
    return driver


def lora_pool(runner: ModelRunner) -> list[torch.Tensor]:
    """All rank units of all sites."""
    sites = runner.lora.sites if runner.lora is not None else ()
    return [tensor for site in sites for tensor in (site.a, site.b)]


def check_padded_steps(mixers: str, count: int, steps: int, growth: int = 7, adapted: bool = False) -> None:
    """`count` rows decode, with and without padding; poison is everywhere but where the rows wrote. growth: of the
    prompts, from row to row. adapted: the second row has no adapter, the others have."""
    model = poisoned_model(mixers)
    if adapted:
        targets = small_targets(mixers)
        alone, padded = (adapted_driver(model, targets, graphs) for graphs in (False, True))
    else:
        alone, padded = (PlanDriver(model, runner_sizes(), device=DEVICE, decode_graphs=g) for g in (False, True))
    names = [f"r{i}" for i in range(count)]
    for driver in (alone, padded):
        for i, name in enumerate(names):
            driver.add(name, prompt_of(1 + growth * i, i), GREEDY, lora_id=(2, 0, 1, 2, 3, 4)[i % 6] if adapted else 0)
        driver.step({name: 1 + growth * i for i, name in enumerate(names) if i})
    graphs = padded.runner.graphs
    assert graphs is not None
    for step in range(steps):
        plans = [driver.plan(dict.fromkeys(names, 1)) for driver in (alone, padded)]
        before = [tensor.clone() for tensor in tensors(padded.runner)]
        pool = [tensor.clone() for tensor in lora_pool(padded.runner)]
        outputs = [driver.runner.execute(plan) for driver, plan in zip((alone, padded), plans)]
        assert graphs.num_steps == step + 1
        # 1. the rows say and keep the same
        said = [driver.commit(plan, output) for driver, plan, output in zip((alone, padded), plans, outputs)]
        assert said[0] == said[1]
        for mask, theirs, ours, old in zip(
            written_by(plans[1], padded.runner), tensors(alone.runner), tensors(padded.runner), before, strict=True
        ):
            torch.testing.assert_close(ours[mask], theirs[mask], rtol=1e-5, atol=1e-5)
            # 2. nothing else has changed by a bit
            assert torch.equal(bits(ours)[~mask], bits(old)[~mask])
        assert all(torch.equal(bits(now), bits(old)) for now, old in zip(lora_pool(padded.runner), pool, strict=True))
        # 3. padding was poison
        size = next(size for size in batch_sizes(12) if size >= count)
        assert torch.isfinite(model.outputs[size][:count]).all()
        assert torch.isnan(model.outputs[size][count:]).all()


@pytest.mark.parametrize("mixers", ["F", "s", "m", "mFsM"])
@pytest.mark.parametrize("count", [1, 3, 5, 9, 12])
def test_padding_is_inert(mixers: str, count: int) -> None:
    """The first step starts a row from nothing; windows pass whole blocks."""
    check_padded_steps(mixers, count, steps=12)


@pytest.mark.parametrize(("mixers", "count"), [("mFs", 3), ("F", 6), ("M", 11)])
def test_padding_is_inert_with_adapters(mixers: str, count: int) -> None:
    """Padding has none; nor has a row; the rank units of nobody are never read."""
    check_padded_steps(mixers, count, steps=4, growth=3, adapted=True)


@pytest.mark.parametrize("adapted", [False, True])
def test_padding_is_inert_in_kernels(adapted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", "triton")
    check_padded_steps("mFs", 3, steps=1 if adapted else 2, growth=2, adapted=adapted)


@pytest.mark.parametrize(("mixers", "count", "ops"), [("mM", 4, "torch"), ("mFsM", 3, ""), ("mF", 2, "triton")])
def test_snapshots_hold_the_state_after_the_token(
    mixers: str, count: int, ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows leave one, also a row that starts from nothing, and later ones over earlier ones. Where the same
    operations run over as many rows, without padding, every bit is that of a step without graphs."""
    monkeypatch.setenv("HYBRID_OPS", ops)
    model = poisoned_model(mixers)
    drivers = [PlanDriver(model, runner_sizes(), device=DEVICE, decode_graphs=graphs) for graphs in (False, True)]
    names = [f"r{i}" for i in range(count)]
    tolerance = 0.0 if ops == "torch" else 1e-5
    slots = [drivers[1].free_slot() for _ in range(2)]
    assert slots == [drivers[0].free_slot() for _ in range(2)]
    for driver in drivers:
        for i, name in enumerate(names):
            driver.add(name, prompt_of(1 + 2 * i, i), GREEDY)
        driver.step({name: 2 * i for i, name in enumerate(names) if i})
    for step in range(3):
        states = []
        for driver in drivers:
            chosen = zip(names[step % 2 :], slots)
            wanted = [(name, driver.requests[name].num_computed + 1, slot) for name, slot in chosen]
            driver.step(dict.fromkeys(names, 1), wanted)
            at = torch.tensor([slot for *_, slot in wanted], device=DEVICE)
            own = torch.tensor([driver.requests[name].state_slot for name, *_ in wanted], device=DEVICE)
            recurrent = [cache for cache in driver.runner.caches.layers if isinstance(cache, StateCache)]
            states.append([(tensor[at], tensor[own]) for cache in recurrent for tensor in (cache.conv, cache.ssm)])
        for (theirs, _), (ours, kept) in zip(*states, strict=True):
            assert torch.isfinite(ours).all() and torch.equal(ours, kept)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert drivers[1].runner.graphs is not None and drivers[1].runner.graphs.num_steps == 3


@pytest.mark.parametrize("seed", range(4))
def test_rows_come_and_go(seed: int) -> None:
    """Tables on the device stay what the runner knows, also through steps that no graph runs; so do the tokens. Some
    have adapters, which are loaded again elsewhere, and some leave snapshots."""
    rng = np.random.default_rng(seed)
    model = poisoned_model("mFs")
    drivers = [adapted_driver(model, small_targets("mFs"), g, num_rows=6, max_model_len=160) for g in (False, True)]
    slots = [[driver.free_slot() for _ in range(3)] for driver in drivers]
    assert slots[0] == slots[1]
    runner = drivers[1].runner
    graphs, mirror = runner.graphs, runner.mirror
    assert graphs is not None and graphs.tables.full is not None and graphs.tables.window is not None
    for number in range(40):
        for driver in drivers:
            for name in [
                n for n, r in driver.requests.items() if len(r.token_ids) - r.num_prompt_tokens > int(n) % 5 + 3
            ]:
                driver.finish(name)
        if len(drivers[0].requests) < 6 and rng.random() < 0.4:
            prompt = prompt_of(int(rng.choice([1, 2, 17])), number)
            lora_id = int(rng.choice([0, *RANKS]))
            for driver in drivers:
                driver.add(str(number), prompt, GREEDY, lora_id=lora_id)
        if number % 10 == 9:
            units = rng.permutation(12).tolist()
            for lora_id, held in UNITS.items():
                elsewhere = [units.pop() for _ in held]
                for driver in drivers:
                    driver.load(lora_id, elsewhere)
        names = [name for name in drivers[0].requests if rng.random() < 0.9]
        counts = {n: len(drivers[0].requests[n].token_ids) - drivers[0].requests[n].num_computed for n in names}
        if not counts:
            continue
        ends = {n: drivers[0].requests[n].num_computed + count for n, count in counts.items()}
        left = [(n, end, slot) for (n, end), slot in zip(ends.items(), slots[0]) if rng.random() < 0.5]
        assert drivers[0].step(counts, left) == drivers[1].step(counts, left)
        for cache, other in zip(runner.caches.layers, drivers[0].runner.caches.layers):
            if isinstance(cache, StateCache) and isinstance(other, StateCache):
                torch.testing.assert_close(cache.ssm, other.ssm, rtol=1e-3, atol=1e-3, equal_nan=True)
        for request in drivers[1].requests.values():
            if request.is_new:
                continue
            row, blocks = request.row, request.num_blocks
            for table, known in ((graphs.tables.full, mirror.full_table), (graphs.tables.window, mirror.window_table)):
                assert table[row, :blocks].tolist() == known[row, :blocks].tolist()
            assert int(graphs.tables.state_slots[row]) == request.state_slot
    assert graphs.tables.full[-1].unique().tolist() == [runner.sizes.num_full_blocks]
    assert graphs.tables.window[-1].unique().tolist() == [runner.sizes.num_window_blocks]
    assert int(graphs.tables.state_slots[-1]) == -1
    assert 5 < graphs.num_steps < 40


FAMILIES = (
    "gemma2: capped, tied",
    "gemma4_text: shared caches, per-layer inputs",
    "gpt_oss: yarn",  # sinks, experts
    "mamba: biases, untied, kernel 3",
    "qwen3_next: every third layer",  # gated delta rule
    "recurrent_gemma: attention last",
    "lfm2: conv, conv, attention, conv",
)


def check_family(case: str, folder: Path, adapters: tuple[int, int, int], steps: int, growth: int) -> None:
    """The same tokens, keys, values and states with and without padding, which is poison here too. adapters: of the
    rows; growth: as above."""
    oracle = Oracle(all_cases()[case], folder)
    loaded = load(oracle.folder, torch.float32, DEVICE)
    model = loaded.decoder
    model._embedding = model._embedding.clone()  # not the head's
    model._embedding[PADDING] = NAN
    said, kept = [], []
    for graphs in (False, True):
        driver = adapted_driver(model, loaded.model.lora_targets(), graphs)
        for i, lora_id in enumerate(adapters):
            prompt = [2 + token % (oracle.vocab_size - 2) for token in prompt_of(1 + growth * i, i)]
            driver.add(f"r{i}", prompt, GREEDY, lora_id=lora_id)
        said.append(driver.run(steps, chunk=100))
        kept.append(tensors(driver.runner))
        assert not graphs or (driver.runner.graphs is not None and driver.runner.graphs.num_steps == steps - 1)
    assert said[0] == said[1]
    for ours, theirs in zip(*kept, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("adapters", [(0, 0, 0), (2, 0, 1)])
@pytest.mark.parametrize("case", FAMILIES)
def test_families(case: str, adapters: tuple[int, int, int], tmp_path: Path) -> None:
    check_family(case, tmp_path, adapters, 8, 6)


@pytest.mark.parametrize(
    ("case", "adapters"),
    [
        ("gpt_oss: yarn", (2, 0, 1)),
        ("qwen3_next: every third layer", (0, 0, 0)),
        ("recurrent_gemma: attention last", (0, 0, 0)),
    ],
)
def test_families_in_kernels(
    case: str, adapters: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRID_OPS", "triton")
    check_family(case, tmp_path, adapters, 2, 1)


def test_what_a_graph_serves() -> None:
    driver = PlanDriver(poisoned_model("mF"), runner_sizes(), device=DEVICE)
    mirror = driver.runner.mirror
    for name in "ab":
        driver.add(name, prompt_of(5), GREEDY)
    prefill = driver.plan({"a": 5, "b": 4})
    assert not decodes_only(prefill, mirror)
    driver.commit(prefill, driver.runner.execute(prefill))
    slot = driver.free_slot()
    with_snapshot = driver.plan({"a": 1, "b": 1}, snapshots=[("a", 6, slot)])
    assert decodes_only(with_snapshot, mirror)
    plan = replace(with_snapshot, snapshots=())
    row = int(plan.rows[0])
    assert decodes_only(plan, mirror)  # "b" ends its prompt with one token, and "a" decodes
    assert decodes_only(replace(plan, samples=np.array([True, False])), mirror)
    assert not decodes_only(replace(plan, rows=plan.rows[:0], num_scheduled_tokens=plan.rows[:0]), mirror)
    assert not decodes_only(
        replace(plan, num_scheduled_tokens=np.array([1, 3]), num_draft_tokens=np.array([0, 2])), mirror
    )
    assert not decodes_only(replace(plan, image_spans=(ImageSpan(row, 5, np.array([1])),)), mirror)
    mirror.lora_id[row] = 1
    assert decodes_only(plan, mirror)
    mirror.images_end[row] = 5
    assert decodes_only(plan, mirror)
    mirror.images_end[row] = 6
    assert not decodes_only(plan, mirror)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (20, (1, 2, 4, 8, 16, 20)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
        (281, (1, 2, 4, *range(8, 257, 8), 272, 281)),
        (5000, (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))),
    ],
)
def test_sizes(most: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(most) == sizes


def test_graphs_are_for_devices_that_capture() -> None:
    model = poisoned_model("F")
    assert (ModelRunner(model, runner_sizes(), DEVICE).graphs is not None) == (DEVICE.type == "cuda")
    assert ModelRunner(model, runner_sizes(), DEVICE, decode_graphs=False).graphs is None
    assert ModelRunner(model, runner_sizes(), DEVICE, decode_graphs=True).graphs is not None


class NoWaiting(TorchDispatchMode):
    """Refuses what a graph cannot hold: reading from the device, results of unknown size, constants from the host."""

    REFUSED = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "lift_fresh", "scalar_tensor")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in self.REFUSED), f"{func} in a graph"
        return func(*args, **(kwargs or {}))


no_waiting = cast(Callable[[], AbstractContextManager[object]], NoWaiting)  # torch leaves it untyped


@pytest.mark.parametrize("case", FAMILIES)
def test_a_graph_can_hold_what_is_captured(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With adapters and without. Kernels are not run, but for those that are in a graph already: the interpreter would
    only take its time."""
    from tests.models.triton.launches import launches  # triton is not installed everywhere

    oracle = Oracle(all_cases()[case], tmp_path)
    monkeypatch.setattr(
        Decoder, "compute_logits", lambda decoder, x, lora: torch.zeros(len(x), decoder.vocab_size, device=x.device)
    )
    monkeypatch.setenv("HYBRID_OPS", "torch")
    assert not load(oracle.folder, torch.float32, DEVICE).decoder.can_capture
    monkeypatch.setenv("HYBRID_OPS", "triton")
    loaded = load(oracle.folder, torch.float32, DEVICE)
    assert loaded.decoder.can_capture
    driver = adapted_driver(loaded.decoder, loaded.model.lora_targets(), decode_graphs=True)
    graphs = driver.runner.graphs
    assert graphs is not None
    with launches() as launched:
        for lora_id in (0, 2):
            driver.add(str(lora_id), [5], GREEDY, lora_id=lora_id)
            driver.step({str(lora_id): 1})  # what is kept from the first time on
            adapted = graphs._graphs[1, True].lora
            assert adapted is not None and bool((adapted._filled >= 0).any()) == (lora_id != 0)
            replay = graphs._graphs[1, lora_id != 0].replay
            with torch.inference_mode(), no_waiting():
                replay()
    assert DEVICE.type != "cpu" or {"lora_shrink", "lora_expand"} <= {name for name, _ in launched}
    assert graphs.num_steps == 2


def test_an_engine_with_graphs_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """With shared prefixes, retraction, two plans in flight, samples that are drawn, log-probabilities, and adapters
    that do not all fit at once."""
    prompts = [f"Some words that many prompts begin with. {'More ' * (i % 5)}Number {i}:" for i in range(16)]
    params = [
        SamplingParams(temperature=i % 2, max_tokens=12, ignore_eos=True, logprobs=i % 3 or None) for i in range(16)
    ]
    found = [LoRARequest(name, i, str(ADAPTERS / name)) for i, name in enumerate(("spanish", "json"), start=1)]
    adapters = [None if i % 3 == 0 else found[i % 2] for i in range(16)]
    loras: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 32, "memory": "64MiB"}
    alone = LLM("tiny", max_num_seqs=1, enforce_eager=True, **loras)
    expected = alone.generate(prompts, params, use_tqdm=False, lora_request=adapters)
    runners: list[ModelRunner] = []

    made: Callable[..., ModelRunner] = ModelRunner

    def with_graphs(*args: Any, decode_graphs: bool | None) -> ModelRunner:
        assert decode_graphs is None
        runners.append(made(*args, decode_graphs=True))
        return runners[-1]

    monkeypatch.setattr(engine_setup, "ModelRunner", with_graphs)
    llm = LLM("tiny", max_num_seqs=6, force_retraction_every=5, max_plans_in_flight=2, **loras)
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
    assert [one.outputs[0].token_ids for one in outputs] == [one.outputs[0].token_ids for one in expected]
    assert llm.stats().retractions > 5 and llm.stats().hit_tokens > 0
    [runner] = runners
    assert runner.graphs is not None and runner.graphs.num_steps > 10


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operation not permitted when stream is capturing"),
        Exception("out of resource: shared memory"),  # as Triton has it
    ],
)
def test_where_cuda_refuses_the_engine_goes_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise error

    monkeypatch.setattr(model_runner, "DecodeGraphs", refuse)
    assert ModelRunner(poisoned_model("F"), runner_sizes(), DEVICE, decode_graphs=True).graphs is None
    assert f"steps run without them: {error}" in caplog.text


def test_what_waits_is_noticed() -> None:
    with pytest.raises(AssertionError, match="in a graph"), no_waiting():
        bool(torch.ones(1, device=DEVICE).any())
