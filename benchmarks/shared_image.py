"""Many requests about one picture: time to the first token of each, the first one against all others.

`python -m benchmarks.shared_image`. The picture is encoded once and its embeddings are shared; with --prefix-caching
what the decoder made of it is shared as well. A request is sent once the one before has its first token, so each of
them meets an engine that still answers those before. Preparing the picture, which every request pays, counts.
"""

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import trange
from transformers import AutoModelForImageTextToText, Gemma3Config
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from hybrid import LLM, SamplingParams
from hybrid.checkpoints import find_checkpoint

IMAGE_TOKEN = 5
# Half the width and depth of Gemma 3's tower, a quarter of its patches, over 12 layers of SmolLM2-135M's shape.
GEMMA3 = Gemma3Config(
    text_config={
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "sliding_window": 512,
        "max_position_embeddings": 8192,
    },
    vision_config={
        "hidden_size": 576,
        "intermediate_size": 2152,
        "num_hidden_layers": 14,
        "num_attention_heads": 8,
        "image_size": 448,
        "patch_size": 14,
        "vision_use_head": False,
    },
    mm_tokens_per_image=256,
    image_token_index=IMAGE_TOKEN,
    boi_token_index=3,
    eoi_token_index=4,
)


def main() -> None:
    """Parse the command line, measure, print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("tiny", "gemma3"), default=("tiny", "gemma3"))
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--new-tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prefix-caching", action="store_true")
    args = parser.parse_args()
    for name in args.models:
        with TemporaryDirectory() as folder:
            measure(name, Path(folder), args)


def measure(name: str, folder: Path, args: argparse.Namespace) -> None:
    """Measure one model and print what was found."""
    if name != "tiny":
        save(folder)
    llm = LLM(
        "tiny" if name == "tiny" else folder,
        tokenizer=find_checkpoint("tiny"),  # words around a picture are tokens too
        max_num_seqs=args.requests,
        num_threads=args.threads,
        enable_prefix_caching=args.prefix_caching,
    )
    images = llm._processor.images
    assert images is not None
    rng = np.random.default_rng(0)
    warm, picture = (
        Image.fromarray(rng.integers(0, 256, (448, 448, 3), dtype=np.uint8)) for _ in range(2)
    )  # kernels are compiled for the first one
    first_tokens(llm, warm, images.placeholder_id, 2, args.new_tokens)
    before = llm.stats().shared["encoder"].loads
    seconds = first_tokens(llm, picture, images.placeholder_id, args.requests, args.new_tokens)
    encoded = llm.stats().shared["encoder"].loads - before
    first, others = seconds[0], seconds[1:]
    print(
        f"{name}, {args.requests} requests with one image of {llm.num_image_tokens(picture)} tokens, encoded {encoded} "
        f"time(s), prefix caching {'on' if args.prefix_caching else 'off'}: first token of the 1st after "
        f"{1000 * first:.1f} ms, of the others after {1000 * median(others):.1f} ms (median; "
        f"{median(others) / first:.2f} times; {1000 * min(others):.1f} to {1000 * max(others):.1f})"
    )


def first_tokens(llm: LLM, picture: Image.Image, placeholder: int, requests: int, new_tokens: int) -> list[float]:
    """Seconds to the first token of every request. Each has words of its own after the picture."""
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    seconds, streams = [], []
    for index in trange(requests, desc="requests", leave=False):
        prompt = {"prompt_token_ids": [2, placeholder, 10 + index, 7, 8, 9], "multi_modal_data": {"image": picture}}
        started = perf_counter()
        stream = llm.stream(prompt, params)
        next(stream)
        seconds.append(perf_counter() - started)
        streams.append(stream)
    for stream in streams:
        for _ in stream:
            pass
    return seconds


def save(folder: Path) -> None:
    """A gemma3 with random weights and its image processor."""
    torch.manual_seed(0)
    auto: Any = AutoModelForImageTextToText
    auto.from_config(GEMMA3, dtype=torch.float32).save_pretrained(folder)
    Gemma3ImageProcessorPil(size={"height": 448, "width": 448}, image_seq_length=256).save_pretrained(folder)


if __name__ == "__main__":
    main()
