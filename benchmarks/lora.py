"""What adapters cost: decoding with 8 adapters of rank 16 in a batch of 32 against the base model alone.

`python -m benchmarks.lora`. Every adapter changes all projections. Both ways run in turns, in one process; the fastest
run of each counts.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from hybrid import LLM, LoRARequest, SamplingParams

from .throughput import FAILED, MODELS, PROMPT_TOKENS, Run, timed


def main() -> None:
    """Parse the command line, measure, print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many runs counts")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.models:
        with TemporaryDirectory() as folder:
            measure(name, Path(folder), args)


def measure(name: str, folder: Path, args: argparse.Namespace) -> None:
    """Measure one model and print what was found."""
    modules = save(name, folder, args)
    llm = LLM(
        folder / "model",
        skip_tokenizer_init=True,
        max_num_seqs=args.requests,
        enable_prefix_caching=False,
        lora_modules=modules,
        max_loras=args.adapters,
        max_lora_rank=args.rank,
    )
    requests = [LoRARequest(adapter) for adapter in modules]
    ways = {
        "base": runs(llm, [None] * args.requests),
        "adapters": runs(llm, [requests[i % len(requests)] for i in range(args.requests)]),
    }
    rng = np.random.default_rng(0)
    best = dict.fromkeys(ways, FAILED)
    for run in ways.values():
        timed(run, rng.integers(10, 40_000, (args.requests, 8)).tolist())
    for _ in tqdm(range(args.repeat), desc=name, unit="run", leave=False):
        prompts = rng.integers(10, 40_000, (args.requests, PROMPT_TOKENS)).tolist()
        for way, run in ways.items():
            prefill, decode = timed(run, prompts)
            best[way] = (max(best[way][0], prefill), max(best[way][1], decode))
    (base_prefill, base_decode), (prefill, decode) = best["base"], best["adapters"]
    print(
        f"{name}, {args.requests} requests, {args.adapters} adapters of rank {args.rank}, tokens per second: "
        f"decode {decode:.1f} of {base_decode:.1f} ({decode / base_decode:.2f} times), "
        f"prefill {prefill:.0f} of {base_prefill:.0f} ({prefill / base_prefill:.2f} times)"
    )


def save(name: str, folder: Path, args: argparse.Namespace) -> dict[str, Path]:
    """A model with random weights in `folder`/model, and random adapters, name -> folder."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(MODELS[name], dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder / "model")
    # mamba's out_proj is left out by peft: training through transformers' fused kernel would pass it by
    targets = [
        part
        for part in (
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
            "in_proj",
            "input_linear",
        )
        if any(module.endswith(part) for module, _ in model.named_modules())
    ]
    config = LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules=targets, init_lora_weights=False)
    adapted = get_peft_model(model, config, adapter_name="adapter0")
    for index in range(1, args.adapters):
        adapted.add_adapter(f"adapter{index}", config)
    adapted.save_pretrained(str(folder))
    return {f"adapter{index}": folder / f"adapter{index}" for index in range(args.adapters)}


def runs(llm: LLM, adapters: Sequence[LoRARequest | None]) -> Run:
    """A way to generate, each prompt with its adapter."""

    def run(prompts: Sequence[Sequence[int]], new_tokens: int) -> object:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        return llm.generate(given, params, use_tqdm=False, lora_request=list(adapters))

    return run


if __name__ == "__main__":
    main()
