"""The oracle of a case: a tiny random checkpoint with its processor, and what transformers makes of a chat with images.

`tests.models.families.oracle` does the same for text.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from tests.models.families.oracle import randomise

from . import cases
from .case import Case

Chat = list[dict[str, Any]]


def all_cases() -> dict[str, Case]:
    """`model_type: case` -> case, of all files in `cases/`."""
    found: dict[str, Case] = {}
    for module in iter_modules(cases.__path__):
        for name, case in import_module(f"{cases.__name__}.{module.name}").CASES.items():
            found[f"{module.name}: {name}"] = case
    return found


class Oracle:
    """transformers' model of a case, with random weights, saved as a checkpoint in `folder`."""

    def __init__(self, case: Case, folder: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        for config in (case.config, case.config.get_text_config()):
            config._experts_implementation = "eager"
        auto: Any = AutoModelForImageTextToText
        self.model: Any = auto.from_config(case.config, dtype=torch.float32, attn_implementation="eager").eval()
        randomise(self.model, seed)
        self.model.get_input_embeddings().weight.data *= case.embedding_gain
        self.model.save_pretrained(folder, max_shard_size="60KB")
        self.processor: Any = case.processor()
        self.processor.save_pretrained(folder)
        self.folder = folder
        self._case = case

    @property
    def image_token_id(self) -> int:
        return int(self.model.config.image_token_id)

    def inputs(self, chat: Chat) -> Mapping[str, torch.Tensor]:
        """What the model reads of a chat."""
        text = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        images = [
            part["image"]
            for message in chat
            if not isinstance(message["content"], str)
            for part in message["content"]
            if part["type"] == "image"
        ]
        more = {"images": images} if images else {}
        inputs: Mapping[str, torch.Tensor] = self.processor(
            text=text, add_special_tokens=False, return_tensors="pt", **more
        )
        return inputs

    @torch.no_grad()
    def logits(self, chat: Chat, tokens: Sequence[int] = ()) -> torch.Tensor:
        """[prompt and tokens, vocab_size], without any cache. tokens: of an answer to the chat."""
        inputs = dict(self.inputs(chat))
        ids = torch.cat((inputs.pop("input_ids"), torch.tensor([list(tokens)], dtype=torch.int64)), dim=1)
        inputs.pop("attention_mask")
        types = inputs.pop(self._case.token_types or "mm_token_type_ids", None)
        if self._case.token_types is not None:
            assert types is not None
            inputs[self._case.token_types] = torch.nn.functional.pad(types, (0, len(tokens)))
        logits: torch.Tensor = self.model(input_ids=ids, use_cache=False, **inputs).logits[0]
        return logits.float()

    def is_greedy(self, chat: Chat, tokens: Sequence[int]) -> bool:
        """Whether at every position the best next token, image tokens aside, is the one that follows."""
        logits = self.logits(chat, tokens)[-len(tokens) - 1 : -1]
        logits[:, self.image_token_id] = -torch.inf
        return logits.argmax(dim=-1).tolist() == list(tokens)


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Noise in large squares: what is left of it in a few pixels differs from picture to picture."""
    generator = torch.Generator().manual_seed(seed)
    squares = torch.randint(0, 256, (4, 4, 3), generator=generator, dtype=torch.uint8).numpy()
    return Image.fromarray(squares).resize((width, height), Image.Resampling.BILINEAR)
