"""Whole tiny checkpoints through TritonOps compute what they compute through plain torch."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hybrid import LLM, SamplingParams
from hybrid.runner.loading import load
from tests.models.families.oracle import Oracle, all_cases
from tests.models.forward import chunked_logits

CASES = (
    "cohere2: biases, untied",  # pairs of neighbours rotate; LayerNorm
    "gemma2: capped, tied",
    "gemma4_text: shared caches, per-layer inputs",
    "gpt_oss: yarn",  # sinks
    "llama: plain",
    "bamba: two of four attend",
    "mamba: biases, untied, kernel 3",
    "nemotron_h: groups of experts in a latent space, biases",
    "qwen3_next: every third layer",
    "recurrent_gemma: attention last",
    "lfm2: conv, conv, attention, conv",
)
SCHEDULE = [[1, 1, 13], [1, 5, 6], [1, 1, 1]]  # tokens of each row, step by step


@pytest.fixture(params=CASES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(all_cases()[request.param], tmp_path_factory.mktemp("checkpoint"))


def logits(oracle: Oracle, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, oracle.vocab_size, count).tolist() for count in np.sum(SCHEDULE, axis=0)]
    yield from chunked_logits(load(oracle.folder, dtype).decoder, rows, SCHEDULE)


def test_logits(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", "triton")
    ours = list(logits(oracle, torch.float32))
    monkeypatch.setenv("HYBRID_OPS", "torch")
    for mine, reference in zip(ours, logits(oracle, torch.float32)):
        error = (mine - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)
        assert float(error.max()) < 1e-4


@pytest.mark.parametrize("oracle", ["gemma2: capped, tied"], indirect=True)
def test_logits_in_bfloat16(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further from float32 than plain torch is, but for what the interpreter loses: it cuts instead of rounding."""
    exact = torch.cat(list(logits(oracle, torch.float32)))
    errors = []
    for name in ("triton", "torch"):
        monkeypatch.setenv("HYBRID_OPS", name)
        short = torch.cat(list(logits(oracle, torch.bfloat16)))
        errors.append(float((short - exact).norm() / exact.norm()))
    assert errors[0] < 1.5 * errors[1]


@pytest.mark.parametrize("oracle", ["gemma4_text: shared caches, per-layer inputs"], indirect=True)
def test_logits_with_adapters(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two adapters and none in one batch, at every site; tables among them."""
    schedule = [[1, 1, 5], [1, 4, 2]]
    decoder = load(oracle.folder, torch.float32).decoder
    generator = torch.Generator().manual_seed(0)
    for site in decoder.lora_sites:
        site.allocate(3, torch.float32, torch.device("cpu"))
        for units, rank in ((torch.tensor([2]), 5), (torch.tensor([1, 0]), 11)):
            a = torch.randn(rank, site.inputs, generator=generator)
            site.write(units, a, 0.02 * torch.randn(site.outputs, rank, generator=generator))
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, oracle.vocab_size, count).tolist() for count in np.sum(schedule, axis=0)]
    results = []
    for name in ("triton", "torch"):
        monkeypatch.setenv("HYBRID_OPS", name)
        results.append(torch.cat(chunked_logits(decoder, rows, schedule, [[2, -1], [-1, -1], [1, 0]])))
    plain = torch.cat(chunked_logits(decoder, rows, schedule))
    scale = plain.abs().amax(dim=-1)
    assert float(((results[0] - results[1]).abs().amax(dim=-1) / scale).max()) < 1e-4
    counts = np.sum(schedule, axis=0)
    changed = ((results[0] - plain).abs().amax(dim=-1) / scale > 1e-2).split(counts.tolist())
    assert [bool(part.any()) for part in changed] == [True, False, True]


@pytest.mark.parametrize("oracle", ["gpt_oss: yarn", "recurrent_gemma: attention last"], indirect=True)
def test_the_engine_says_the_same(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    prompts = [{"prompt_token_ids": rng.integers(2, oracle.vocab_size, count).tolist()} for count in (3, 9, 21)]
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    said = []
    for name in ("triton", "torch"):
        monkeypatch.setenv("HYBRID_OPS", name)
        llm = LLM(
            oracle.folder,
            dtype="float32",
            skip_tokenizer_init=True,
            memory="16MiB",
            max_model_len=64,
            block_size=8,
            max_num_batched_tokens=16,
        )
        said.append([output.outputs[0].token_ids for output in llm.generate(prompts, sampling, use_tqdm=False)])
    assert said[0] == said[1]
