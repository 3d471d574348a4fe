"""Our engine against transformers on this machine, in one run: `python -m benchmarks.throughput [--dtype float32]`.

Two models with random weights (speed does not depend on their values): one of SmolLM2-135M's shape, and a hybrid of
Granite 4.0's kind with about as many weights. 1, 8 and 32 requests of 128 prompt tokens and 64 new ones. Prefill is
timed with one new token; decoding is the rest. transformers runs `generate` on a padded batch, and its continuous
batching.
"""

import argparse
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    PreTrainedConfig,
)

from hybrid import LLM, SamplingParams

PROMPT_TOKENS, NEW_TOKENS = 128, 64
REQUESTS = (1, 8, 32)
MODELS: dict[str, PreTrainedConfig] = {
    "SmolLM2-135M": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    ),
    "granite hybrid": GraniteMoeHybridConfig(
        vocab_size=49152,
        hidden_size=768,
        intermediate_size=2048,
        shared_intermediate_size=2048,
        num_hidden_layers=12,
        layer_types=["mamba", "mamba", "mamba", "attention"] * 3,
        num_attention_heads=12,
        num_key_value_heads=4,
        mamba_n_heads=24,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_expand=2,
        num_local_experts=0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
}

FAILED = (0.0, 0.0)
Run = Callable[[Sequence[Sequence[int]], int], object]  # (prompts, new tokens of each)


def main() -> None:
    """Parse the command line, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--requests", nargs="+", type=int, default=REQUESTS)
    parser.add_argument("--ours-only", action="store_true", help="do not run transformers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many runs counts")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.models:
        with TemporaryDirectory() as folder:
            measure_model(name, Path(folder), args)


def measure_model(name: str, folder: Path, args: argparse.Namespace) -> None:
    """Measure one model and print its table."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    theirs = auto.from_config(MODELS[name], dtype=torch.float32).eval()
    theirs.generation_config.eos_token_id = None
    theirs.save_pretrained(folder)
    weights = sum(parameter.numel() for parameter in theirs.parameters())
    ways: dict[str, Run] = {"engine": engine(folder, max(args.requests))}
    if not args.ours_only:
        ways["generate"] = padded_batch(theirs)
        ways["continuous batching"] = continuous_batching(auto.from_pretrained(folder, dtype=torch.float32))
    table = Table(title=f"{name}: {weights / 1e6:.0f} M weights, float32, {args.threads} threads, tokens per second")
    for column in ("requests", *(f"{way} {what}" for way in ways for what in ("prefill", "decode"))):
        table.add_column(column, justify="right")
    names = tuple(ways)
    for count in args.requests:
        rng = np.random.default_rng(count)
        row = [str(count)]
        speeds = dict.fromkeys(names, FAILED)
        # a way that fails here fails for good; the others have compiled what they compile
        warm = rng.integers(10, 40_000, (count, 8)).tolist()
        ways = {way: run for way, run in ways.items() if timed(run, warm) != FAILED}
        for _ in tqdm(range(args.repeat), desc=f"{name}, {count} requests", unit="run", leave=False):
            prompts = rng.integers(10, 40_000, (count, PROMPT_TOKENS)).tolist()
            for way, run in ways.items():
                prefill, decode = timed(run, prompts)
                speeds[way] = (max(speeds[way][0], prefill), max(speeds[way][1], decode))
        for prefill, decode in speeds.values():
            row += [f"{prefill:.0f}" if prefill else "fails", f"{decode:.1f}" if decode else "fails"]
        table.add_row(*row)
        for way in list(ways)[1:]:
            if speeds[way][1]:
                ratio = speeds["engine"][1] / speeds[way][1]
                tqdm.write(f"{name}, {count} requests: decoding {ratio:.2f} times as fast as {way}")
    Console().print(table)


def timed(run: Run, prompts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """(prefill, decode) in tokens per second; zeros for a way that fails."""
    gc.collect()
    try:
        start = perf_counter()
        run(prompts, 1)
        middle = perf_counter()
        run([[token + 1 for token in prompt] for prompt in prompts], NEW_TOKENS)  # others: nothing may be cached
        end = perf_counter()
    except Exception as error:  # a way that this version of transformers cannot go on this machine
        tqdm.write(f"fails: {error}")
        return FAILED
    prefill = middle - start
    decode = end - middle - prefill
    return sum(map(len, prompts)) / prefill, len(prompts) * (NEW_TOKENS - 1) / decode


def engine(folder: Path, max_num_seqs: int) -> Run:
    """Our engine."""
    llm = LLM(folder, skip_tokenizer_init=True, max_num_seqs=max_num_seqs, max_model_len=256, memory="1GiB")

    def run(prompts: Sequence[Sequence[int]], new_tokens: int) -> object:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        return llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False)

    return run


def padded_batch(model: Any) -> Run:
    """transformers' `generate`."""

    @torch.inference_mode()
    def run(prompts: Sequence[Sequence[int]], new_tokens: int) -> object:
        ids = torch.tensor(prompts)
        options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return run


def continuous_batching(model: Any) -> Run:
    """transformers' `generate_batch`; it changes the model, which is good for nothing else afterwards."""
    blocks = ContinuousBatchingConfig(page_size=32, num_blocks=512, max_batch_tokens=2048)

    @torch.no_grad()
    def run(prompts: Sequence[Sequence[int]], new_tokens: int) -> object:
        make: Any = GenerationConfig
        config = make(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        outputs = model.generate_batch(
            [list(prompt) for prompt in prompts], generation_config=config, continuous_batching_config=blocks
        )
        if not outputs or any(len(output.generated_tokens) != new_tokens for output in outputs.values()):
            raise RuntimeError("continuous batching gave no or too few tokens")
        return outputs

    return run


if __name__ == "__main__":
    main()
