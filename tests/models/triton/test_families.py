"""Whole tiny checkpoints through TritonOps compute what they compute through plain torch, from chunks and decodes."""

import numpy as np
import pytest
import torch

from hybrid.runner.loading import load
from tests.models.families.oracle import Oracle, all_cases
from tests.models.forward import chunked_logits

CASES = (
    "llama: plain",
    "gpt_oss: yarn",
    "gemma2: capped, tied",
    "gemma4_text: experts, values are keys, softcap",
    "zamba2: two blocks",
    "mamba2: groups",
    "mamba: biases, untied, kernel 3",
    "falcon_h1: norm after the gate, biases",
    "qwen3_next: every third layer",
    "recurrent_gemma: attention last",
    "lfm2: conv, conv, attention, conv",
)


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = Oracle(all_cases()[case], tmp_path_factory.mktemp("checkpoint"))
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, oracle.vocab_size, count).tolist() for count in (3, 11, 33)]
    schedule = [[1, 1, 20], [1, 9, 12], [1, 1, 1]]

    def logits(name: str) -> list[torch.Tensor]:
        monkeypatch.setenv("HYBRID_OPS", name)
        return chunked_logits(load(oracle.folder, torch.float32).decoder, rows, schedule)

    for ours, theirs in zip(logits("triton"), logits("torch")):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
