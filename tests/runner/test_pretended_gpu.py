"""Steps on a pretended GPU: they say what a CPU says. Nobody waits for the device while one is launched, and once, for
its tokens, until its result is there.

Kernels run in Triton's interpreter. Only a GPU shows whether they compile, and how fast all is. Pictures and adapters:
`tests/multimodal/test_on_a_pretended_gpu.py`.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights
from hybrid.runner.launched import RunnerOutput
from hybrid.sampling_params import SamplingParams
from tests.models.families.oracle import all_cases
from tests.pretended.cuda import pretended
from tests.pretended.device import PretendedDevice
from tests.runner.plans import VOCAB, PlanDriver, RandomAdapters, random_reference, runner_sizes, small_config

PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "reported": SamplingParams(temperature=0.0, logprobs=3),
    "penalised": SamplingParams(temperature=0.0, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    "biased": SamplingParams(temperature=0.0, logit_bias={5: 3.0}, min_tokens=4),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """Whoever computes on a GPU does on it."""
    monkeypatch.delenv("HYBRID_OPS", raising=False)
    with pretended(monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def model() -> Decoder:
    """On the CPU."""
    return native("cpu")


def native(device: str) -> Decoder:
    reference = random_reference(small_config("mFs"))
    weights = Weights(reference.state_dict(), torch.float32, torch.device(device))
    return Decoder(read_model(reference.config.to_dict()), weights)


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(3, VOCAB, length)]


def steps(driver: PlanDriver, device: PretendedDevice | None = None) -> list[RunnerOutput]:
    """Chunks, decodes, a grammar, a snapshot, a request that goes on from it, drafts. device: that is watched."""
    outputs: list[RunnerOutput] = []

    def step(
        counts: dict[str, int],
        snapshot: int | None = None,
        drafts: dict[str, list[int]] | None = None,
        only: int | None = None,
    ) -> None:
        plan = driver.plan(counts, [] if snapshot is None else [("biased", 7, snapshot)], drafts)
        masks = {}
        if only is not None:
            masks[driver.requests["greedy"].row] = np.array([1 << only, 0], dtype=np.int32)
            plan = replace(plan, needs_grammar=plan.rows == driver.requests["greedy"].row)
        before = 0 if device is None else len(device.waits)
        result = driver.runner.launch(plan, lambda: masks)
        assert device is None or drafts or len(device.waits) == before, device.waits[before:]
        outputs.append(result())
        assert device is None or len(device.waits) == before + 1, device.waits[before:]
        driver.commit(plan, outputs[-1])

    for i, (name, params) in enumerate(PARAMS.items()):
        driver.add(name, prompt(3 + 4 * i), params, seed=i)
    slot = driver.free_slot()
    step({"greedy": 3, "biased": 10}, slot)
    step({"greedy": 1, "drawn": 7, "reported": 11, "penalised": 15, "biased": 9})
    step(dict.fromkeys(PARAMS, 1), only=17)
    assert driver.requests["greedy"].token_ids[-1] == 17
    driver.add("hit", [*driver.requests["biased"].token_ids[:7], 9, 8, 7])
    driver.resume("hit", "biased", 7, slot)
    step({"hit": 3, "greedy": 1})
    step({"hit": 1, "greedy": 1}, drafts={"greedy": [4, 5]})
    step(dict.fromkeys([*PARAMS, "hit"], 1))
    return outputs


def assert_same(got: list[RunnerOutput], expected: list[RunnerOutput]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.result.sampled_token_ids.tolist() == theirs.result.sampled_token_ids.tolist()
        for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert (mine is None) == (other is None)
            for one, same in zip(mine or (), other or (), strict=True):
                assert (one.token_id, one.rank) == (same.token_id, same.rank)
                assert one.logprob == pytest.approx(same.logprob, abs=1e-4)
                np.testing.assert_allclose(one.top_logprobs, same.top_logprobs, atol=1e-4)


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[RunnerOutput]:
    return steps(PlanDriver(model, runner_sizes()))


def test_steps(device: PretendedDevice, expected: list[RunnerOutput]) -> None:
    """The third is a graph's."""
    driver = PlanDriver(native("cuda"), runner_sizes(num_rows=6), device="cuda", decode_graphs=None)
    assert_same(steps(driver, device), expected)
    graphs = driver.runner.graphs
    assert graphs is not None and graphs.num_steps == 2
    assert {"attend", "conv_chunk", "ssd_snapshot", "measure", "cut"} <= set(device.launched)


def test_another_gpu_than_the_first(device: PretendedDevice, expected: list[RunnerOutput]) -> None:
    """Triton launches on the current device, and every thread has its own."""
    driver = PlanDriver(native("cuda:1"), runner_sizes(), device="cuda:1")
    driver.add("greedy", prompt(3), PARAMS["greedy"])
    driver.step({"greedy": 3})
    device.current = 0  # of a thread that runs its first step
    driver.step({"greedy": 1})
    assert driver.requests["greedy"].token_ids[-1] == expected[1].result.sampled_token_ids[0, 0]


def test_graphs_with_adapters(device: PretendedDevice) -> None:
    """Also one that is loaded in a step of a graph's, and a snapshot."""
    said = []
    for where in ("cpu", "cuda"):
        decoder = native(where)
        targets = {site.name: (site.outputs, site.inputs) for site in decoder.lora_sites if not site.table}
        driver = PlanDriver(
            decoder,
            runner_sizes(num_rows=2, lora_units=4),
            device=where,
            decode_graphs=False if where == "cpu" else None,
            adapters=RandomAdapters(targets, {1: 5, 2: 12}),
            lora_targets=targets,
        )
        driver.load(1, [2])
        driver.add("a", prompt(3), lora_id=1)
        tokens = [driver.step({"a": 3})]
        driver.load(2, [3, 0])
        driver.add("b", [5], lora_id=2)
        for snapshots in ([("a", 4, driver.free_slot())], []):
            plan = driver.plan({"a": 1, "b": 1}, snapshots)
            before = len(device.waits)
            result = driver.runner.launch(plan)
            assert len(device.waits) == before
            tokens.append(driver.commit(plan, result()))
        said.append(tokens)
    assert said[0] == said[1]
    assert driver.runner.graphs is not None and driver.runner.graphs.num_steps == 2
    assert "lora_expand" in device.launched


FAMILIES = (
    "falcon_h1: norm before the gate, expand, biases elsewhere",
    "gemma4_text: shared caches, per-layer inputs",
    "nemotron_h: groups of experts in a latent space, biases",
    "olmo_hybrid: rope, attention first, tied",
    "qwen3_5_text: attention in the middle",
    "recurrent_gemma: attention last",
    "zamba2: two blocks",
)


def family(case: str, device: str) -> Decoder:
    """With random weights."""
    model = read_model(all_cases()[case].to_dict())
    generator = torch.Generator().manual_seed(0)
    tensors = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in model.tensors().items()}
    return Decoder(model, Weights(tensors, torch.float32, torch.device(device)))


def check_family(case: str, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch, ops: str | None) -> None:
    """A chunk beside a first token, and a decode step: everything lies on the device."""
    said = []
    for where in ("cpu", "cuda"):
        if where == "cuda" and ops is not None:
            monkeypatch.setenv("HYBRID_OPS", ops)
        driver = PlanDriver(family(case, where), runner_sizes(max_model_len=16), device=where)
        driver.add("a", prompt(5))
        driver.add("b", prompt(2))
        before = len(device.waits)
        said.append([driver.step({"a": 5, "b": 1}), driver.step({"a": 1})])
    assert said[0] == said[1]
    assert ops == "torch" or len(device.waits) == before + 2, device.waits[before:]


@pytest.mark.parametrize("case", FAMILIES)
def test_families(case: str, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    check_family(case, device, monkeypatch, "torch")


@pytest.mark.parametrize("case", ["gpt_oss: yarn", "jamba: two of five", "qwen3_next: every third layer"])
def test_families_in_kernels(case: str, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more than the tokens, also from the first step on."""
    check_family(case, device, monkeypatch, None)
