"""Trains two LoRA adapters of the tiny model with peft: `python -m examples.train_adapters`.

"spanish" answers in Spanish, "json" as JSON objects; both see the pictures and questions that the model was trained on.
Seeded; 1.1 s per step on a quiet CPU core. Prints how many answers about held-out pictures are right: 61.7 % of 300 in
Spanish and 80.7 % as JSON for the folders in the repository, which took 20 minutes each, a core apiece.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tqdm import tqdm

from hybrid.encoders.preprocess import preprocess
from hybrid.models.reference import NativeReference

from .conversations import Conversation, Encoder, lessons, picture_turns, random_conversation
from .digits_data import Digits, load_split
from .evaluate_tiny import HELD_OUT_SEEDS, MODEL_DIR
from .other_answers import REWRITES, Rewrite, rewritten
from .train_tiny import QUESTIONS_PER_LESSON, Batch, collate

# Words of another language need a high rank: the model has never written most of their letters.
RANKS = {"spanish": 32, "json": 16}
# All projections of the decoder; the vision tower, which has none of these, stays as it is.
TARGETS = ["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LESSONS_PER_BATCH, CONVERSATIONS_PER_BATCH = 6, 4
MAX_TOKENS = 40


def main() -> None:
    """Parse the command line; train, write and judge each adapter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(REWRITES), help="train this one; without it, both")
    parser.add_argument(
        "--out", type=Path, default=Path("adapters/checkpoints"), help="where their folders are written"
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="checkpoint folder of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="of AdamW, at its highest")
    parser.add_argument("--held-out", type=int, default=300, help="questions to judge by")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in [args.only] if args.only else REWRITES:
        train(name, args)


def train(name: str, args: argparse.Namespace) -> None:
    """One adapter, from nothing to its folder."""
    # 1. the model with an adapter that changes nothing yet
    torch.manual_seed(args.seed)
    digits, held_out = load_split()
    model = NativeReference.from_pretrained(args.model)
    model.set_form("fast")
    vision = model.config.vision_config
    assert vision is not None
    encoder = Encoder(Tokenizer.from_file(str(args.model / "tokenizer.json")), vision.num_image_tokens)
    config = LoraConfig(r=RANKS[name], lora_alpha=2 * RANKS[name], target_modules=TARGETS)
    adapted = get_peft_model(model, config)
    params = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=args.learning_rate, weight_decay=0.0, betas=(0.9, 0.98))
    # 2. the loop
    recent: deque[bool] = deque(maxlen=1000)
    bar = tqdm(range(args.steps), desc=f"training {name}", unit="step", mininterval=5)
    for step in bar:
        rate = min(1.0, (step + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * step / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * rate
        batch = make_batch(random.Random(args.seed * 10**7 + step), REWRITES[name], encoder, model, digits)
        with torch.no_grad():
            seen = model.vision(batch.pixel_values)[batch.shown]
        hidden = model.decode(model.embed(batch.token_ids, seen))
        logits = model.head(hidden.flatten(0, 1)[batch.positions])  # [answer tokens, V]
        loss = F.cross_entropy(logits, batch.targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        wrong = np.bincount(batch.owners, (logits.argmax(-1) != batch.targets).numpy(), len(batch.kinds))
        recent.extend((wrong == 0).tolist())
        bar.set_postfix_str(f"loss {float(loss.detach()):.3f}, {np.mean(recent):.1%} right", refresh=False)
    # 3. the folder, in peft's format, without what says nothing here
    folder = args.out / name
    adapted.peft_config["default"].base_model_name_or_path = "tiny"
    for param in params:  # as they are stored
        param.data = param.data.half().float()
    halves = {key: value.half() for key, value in adapted.state_dict().items()}
    adapted.save_pretrained(folder, state_dict=halves)
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "adapter_model.safetensors").chmod(0o644)
    right = judge(name, model.eval(), encoder, held_out, args.held_out)
    print(f"{name}: {right:.1%} of {args.held_out} answers about held-out pictures are right")


def make_batch(rng: random.Random, rewrite: Rewrite, encoder: Encoder, model: NativeReference, digits: Digits) -> Batch:
    """Lessons of one question and whole conversations, the answers said otherwise."""
    conversations = [c for _ in range(LESSONS_PER_BATCH) for c in lessons(rng, digits, QUESTIONS_PER_LESSON)]
    conversations += [random_conversation(rng, digits) for _ in range(CONVERSATIONS_PER_BATCH)]
    chosen = [rewritten(conversation, rewrite) for conversation in conversations]
    return collate([(*encoder.encode(c), c.pictures()) for c in chosen], model.config)


@torch.no_grad()
def judge(name: str, model: NativeReference, encoder: Encoder, held_out: Digits, num: int) -> float:
    """Share of held-out questions whose greedy answer is exactly right, through the plain model."""
    model.set_form("plain")
    vision = model.config.vision_config
    assert vision is not None
    right = 0
    for i in tqdm(range(num), desc=f"judging {name}", unit="question"):
        rng = random.Random(HELD_OUT_SEEDS + 10**9 + i)
        turns = picture_turns(rng, held_out, 1, digit_share=0.33, warp=False)
        conversation = rewritten(Conversation(tuple(turns)), REWRITES[name])
        ids, (answer,) = encoder.encode(conversation)
        pixels = np.stack([preprocess(picture.image, vision.image_size) for picture in conversation.pictures()])
        given = model.generate(ids[: answer.start], torch.from_numpy(pixels), MAX_TOKENS, model.config.eos_token_id)
        right += given == ids[answer.start : answer.end]
    return right / num


if __name__ == "__main__":
    main()
