"""Whether an engine by Triton's kernels on a device says what one in plain torch on the CPU says: tiny checkpoints."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from hybrid import LLM, SamplingParams
from hybrid.models.context import AttentionCache, LayerCache, StateCache
from hybrid.runner.loading import load
from tests.models.families.oracle import Oracle, all_cases
from tests.models.forward import caches_for, context_for

from .gpu_case import ops, relative_error

CASES = (
    "bamba: two of four attend",
    "gpt_oss: yarn",
    "llama: plain",
    "gemma2: capped, tied",
    "cohere2: biases, untied",
    "mamba: biases, untied, kernel 3",
    "qwen3_next: every third layer",
    "recurrent_gemma: attention last",
    "lfm2: conv, conv, attention, conv",
    "falcon_h1: no norm",
)
PROMPTS = (3, 9, 21)
COUNTS = (1, 7, 13)  # tokens of the rows of the batch whose logits are compared
SHORT_CASES, SHORT_TOKENS, TOKENS = 1, 2, 12
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Sameness:
    """tokens: whether greedy ones of float32 are equal. errors: of logits by the norm of the CPU's in float32: the
    device's and the CPU's, both in bfloat16."""

    tokens: bool
    errors: tuple[float, float]

    def holds(self, device: torch.device) -> bool:
        """Whether the device is about as near as the CPU; interpreted kernels cut bfloat16 instead of rounding."""
        slack = 2 if device.type == "cuda" else 4
        return self.tokens and self.errors[0] < slack * self.errors[1]


def sameness(case: str, device: torch.device, new_tokens: int) -> Sameness:
    """Of one tiny checkpoint, by its name among the tests'."""
    with TemporaryDirectory() as folder:
        oracle = Oracle(all_cases()[case], Path(folder))
        said, logits = [], []
        for name, where in (("triton", device), ("torch", CPU)):
            with ops(name):
                said.append(_said(oracle, where, new_tokens))
                logits.append(_logits(oracle, where, torch.bfloat16))
        with ops("torch"):
            exact = _logits(oracle, CPU, torch.float32)
    return Sameness(said[0] == said[1], (relative_error(logits[0], exact), relative_error(logits[1], exact)))


def _said(oracle: Oracle, device: torch.device, new_tokens: int) -> list[list[int]]:
    """Greedy tokens of float32, of several requests at once, prompts in chunks."""
    rng = np.random.default_rng(1)
    prompts = [{"prompt_token_ids": rng.integers(2, oracle.vocab_size, count).tolist()} for count in PROMPTS]
    llm = LLM(
        oracle.folder,
        dtype="float32",
        device=str(device),
        skip_tokenizer_init=True,
        memory="16MiB",
        max_model_len=64,
        block_size=8,
        max_num_batched_tokens=16,
    )
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


@torch.inference_mode()
def _logits(oracle: Oracle, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Of every token of a batch of a decode and chunks, on the CPU."""
    rng = np.random.default_rng(2)
    model = load(oracle.folder, dtype, device).decoder
    rows = [rng.integers(2, oracle.vocab_size, count).tolist() for count in COUNTS]
    caches = tuple(_moved(cache, device) for cache in caches_for(model, len(rows)))
    context = context_for(rows, [0] * len(rows), list(COUNTS), caches)
    context = replace(context, token_ids=context.token_ids.to(device), positions=context.positions.to(device))
    return model.compute_logits(model.forward(context)).cpu()


def _moved(cache: LayerCache, device: torch.device) -> LayerCache:
    if isinstance(cache, AttentionCache):
        return AttentionCache(cache.kv.to(device))
    return StateCache(cache.conv.to(device), cache.ssm.to(device))
