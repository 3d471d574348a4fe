"""Measures the bundled tiny model on pictures it was not trained on: `python -m examples.evaluate_tiny`.

Drawn pictures come from seeds that training never uses, digits from the held-out part of the split. Answers count
when they are exactly right, and are asked for greedily, through the engine, the plain-torch reference, or both. Exits
with 1 below 97 % on drawn pictures or 93 % on digits.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .conversations import IMAGE, Conversation, picture_turns
from .digits_data import load_split

MODEL_DIR = Path("models/checkpoints/tiny")
HELD_OUT_SEEDS = 10**12  # training seeds are far below
MAX_TOKENS = 12
FLOORS = {"drawn": 0.97, "digits": 0.93}


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation that ends with a question, and what is right. `group` is "drawn" or "digits"."""

    group: str
    conversation: Conversation
    prompt: str

    @property
    def kind(self) -> str:
        """Kind of the last question."""
        return self.conversation.turns[-1].kind

    @property
    def answer(self) -> str:
        """The right answer to the last question."""
        return self.conversation.turns[-1].answer


def main() -> None:
    """Parse the command line, evaluate, print accuracies, and exit with 1 when a floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--through", choices=("engine", "reference", "both"), default="engine")
    parser.add_argument("--num", type=int, default=1000, help="samples, about a third of them digits")
    parser.add_argument("--seed", type=int, default=0, help="another seed asks about other pictures")
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="checkpoint folder")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print the first N wrong answers")
    args = parser.parse_args()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    samples = make_samples(args.num, args.seed, tokenizer)
    ways = ("engine", "reference") if args.through == "both" else (args.through,)
    answers = {way: WAYS[way](args.model, samples, tokenizer) for way in ways}
    passed = True
    for way in ways:
        passed &= report(way, samples, answers[way], args.show_wrong)
    if len(ways) == 2:
        same = sum(a == b for a, b in zip(answers["engine"], answers["reference"], strict=True))
        print(f"\nengine and reference give the same text for {same} of {len(samples)} samples")
    sys.exit(0 if passed else 1)


def make_samples(num: int, seed: int, tokenizer: Any) -> list[Sample]:
    """`num` held-out samples: two thirds drawn, one third digits; one in five comes after another question."""
    _, held_out = load_split()
    samples = []
    for i in range(num):
        rng = random.Random(HELD_OUT_SEEDS + seed * 10**7 + i)
        group = "digits" if i % 3 == 2 else "drawn"
        turns = picture_turns(rng, held_out, rng.choice((1, 1, 1, 1, 2)), float(group == "digits"), warp=False)
        conversation = Conversation(tuple(turns))
        prompt = tokenizer.apply_chat_template(conversation.messages(), add_generation_prompt=True, tokenize=False)
        samples.append(Sample(group, conversation, prompt))
    return samples


def answer_with_reference(model_dir: Path, samples: Sequence[Sample], tokenizer: Any) -> list[str]:
    """Greedy answers of the plain-torch model, one sample after the other."""
    from hybrid.encoders.preprocess import preprocess
    from hybrid.models.reference import NativeReference

    model = NativeReference.from_pretrained(model_dir)
    vision = model.config.vision_config
    assert vision is not None
    answers = []
    for sample in tqdm(samples, desc="reference", unit="sample"):
        text = sample.prompt.replace(IMAGE, IMAGE * vision.num_image_tokens)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        pictures = [preprocess(picture.image, vision.image_size) for picture in sample.conversation.pictures()]
        pixel_values = torch.stack([torch.from_numpy(picture) for picture in pictures])
        generated = model.generate(ids, pixel_values, MAX_TOKENS, model.config.eos_token_id)
        answers.append(tokenizer.decode(generated, skip_special_tokens=True))
    return answers


def answer_with_engine(model_dir: Path, samples: Sequence[Sample], tokenizer: Any) -> list[str]:
    """Greedy answers of the serving engine, all samples in one call."""
    from hybrid import LLM, SamplingParams

    prompts = []
    for sample in samples:
        (picture,) = sample.conversation.pictures()
        prompts.append({"prompt": sample.prompt, "multi_modal_data": {"image": picture.image}})
    llm = LLM(model=str(model_dir))
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    return [output.outputs[0].text for output in outputs]


WAYS = {"engine": answer_with_engine, "reference": answer_with_reference}


def report(way: str, samples: Sequence[Sample], answers: Sequence[str], show_wrong: int) -> bool:
    """Print accuracy by kind and by group; returns whether every group reaches its floor."""
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for sample, answer in zip(samples, answers, strict=True):
        correct = answer == sample.answer
        right[sample.group, sample.kind].append(correct)
        right[sample.group, "all"].append(correct)
        if not correct and show_wrong > 0:
            show_wrong -= 1
            asked = sample.conversation.turns[-1].question
            print(f"{sample.group} {sample.kind}: {asked!r} -> {answer!r}, right is {sample.answer!r}")
    print(f"\n{way}: share of right answers on held-out pictures")
    for (group, kind), hits in sorted(right.items(), key=lambda item: (item[0][0], item[0][1] != "all", item[0][1])):
        name = group if kind == "all" else "  " + kind
        print(f"{name:<16} {sum(hits) / len(hits):7.2%}  of {len(hits)}")
    return all(
        sum(right[group, "all"]) >= floor * len(right[group, "all"])
        for group, floor in FLOORS.items()
        if right[group, "all"]
    )


if __name__ == "__main__":
    main()
