"""Families with mrope: prompts with images made of random embeddings, and what transformers' text model says to them.

Everything but the vision tower: which tokens are images, where all tokens stand, what is added to early layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hybrid.models.image_positions import ImagePositions
from tests.models.forward import RowImages

from .oracle import Oracle, all_cases

TYPES = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
CASES = [case for case in all_cases() if case.split(":")[0] in TYPES]
Layout = list[int | tuple[int, int]]  # tokens of text, (rows, columns) of an image


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """Token ids, offsets and grids of the images, embeddings of their tokens."""

    token_ids: list[int]
    offsets: list[int]
    grids: list[tuple[int, int]]
    embeddings: torch.Tensor  # [image tokens, size]

    @property
    def positions(self) -> ImagePositions | None:
        return ImagePositions.of(self.offsets, self.grids) if self.grids else None

    @property
    def image_tokens(self) -> list[int]:
        """Their indices."""
        return [offset + i for offset, (rows, columns) in zip(self.offsets, self.grids) for i in range(rows * columns)]

    @property
    def images(self) -> RowImages | None:
        """For `chunked_logits`."""
        positions = self.positions
        return None if positions is None else RowImages(self.image_tokens, self.embeddings, positions)

    @property
    def by_offset(self) -> dict[int, torch.Tensor]:
        """First token of each image -> embeddings of its tokens."""
        counts = [rows * columns for rows, columns in self.grids]
        return dict(zip(self.offsets, self.embeddings.split(counts)))


class TextOracle(Oracle):
    """An oracle that is asked without pictures."""

    def __init__(self, case: str, folder: Path) -> None:
        super().__init__(all_cases()[case], folder)
        text: Any = self.model.config.get_text_config()
        vision: Any = self.model.config.vision_config
        self.levels = len(vision.deepstack_visual_indexes) if case.startswith("qwen3_vl") else 0
        self.hidden_size = int(text.hidden_size)
        self.merge = int(vision.spatial_merge_size)
        self.image_token_id = int(self.model.config.image_token_id)

    def prompt(self, layout: Layout, seed: int) -> ImagePrompt:
        """layout: images must have text between them, as transformers would take them for one."""
        rng = np.random.default_rng(seed)
        offsets, grids, length = [], [], 0
        for item in layout:
            if isinstance(item, tuple):
                offsets.append(length)
                grids.append(item)
            length += item[0] * item[1] if isinstance(item, tuple) else item
        count = sum(rows * columns for rows, columns in grids)
        noise = torch.from_numpy(rng.standard_normal((count, self.hidden_size * (1 + self.levels))))
        ids = rng.integers(self.image_token_id + 1, self.vocab_size, length)
        prompt = ImagePrompt(ids.tolist(), offsets, grids, noise.float())
        for token in prompt.image_tokens:
            prompt.token_ids[token] = self.image_token_id
        return prompt

    @torch.no_grad()
    def image_logits(self, prompt: ImagePrompt, generated: Sequence[int] = ()) -> torch.Tensor:
        """[tokens, vocab_size] of the prompt and what was generated after it."""
        model: Any = self.model
        ids = torch.tensor([[*prompt.token_ids, *generated]])
        if not prompt.grids:
            return self.logits(ids[0].tolist())
        types = torch.zeros_like(ids)
        types[0, prompt.image_tokens] = 1
        grids = torch.tensor([(1, rows * self.merge, columns * self.merge) for rows, columns in prompt.grids])
        positions, _ = model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)
        embeds = model.get_input_embeddings()(ids)
        first, *levels = prompt.embeddings.split(self.hidden_size, dim=1)
        embeds[0, prompt.image_tokens] = first
        deepstack = {"visual_pos_masks": types == 1, "deepstack_visual_embeds": levels} if levels else {}
        output = model.model.language_model(inputs_embeds=embeds, position_ids=positions, use_cache=False, **deepstack)
        logits: torch.Tensor = model.lm_head(output.last_hidden_state)[0]
        return logits.float()

    def continues(self, prompt: ImagePrompt, tokens: Sequence[int]) -> bool:
        """Whether at every position the best next token is the one that follows."""
        best = self.image_logits(prompt, tokens).argmax(dim=-1)[len(prompt.token_ids) - 1 : -1]
        return best.tolist() == list(tokens)
