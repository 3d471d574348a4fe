"""Prompt: what the processor made of a user's input, ready for scheduler and runner. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hybrid.encoders.inputs import EncoderInput
from hybrid.models.image_positions import ImagePositions
from hybrid.scheduler.plan import TokenIds
from hybrid.scheduler.request import ImageInput


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens with every image placeholder expanded, and the images in them.

    `text` is None where token ids were given. `encoder_inputs`: by mm_hash; equal pictures share one.
    `resume_hints` are token positions at which a later prompt is likely to branch off, ascending.
    """

    text: str | None
    token_ids: TokenIds  # [num_prompt_tokens]
    images: tuple[ImageInput, ...] = ()
    encoder_inputs: Mapping[str, EncoderInput] = field(default_factory=dict)
    resume_hints: tuple[int, ...] = ()
    cache_salt: str = ""
    image_positions: ImagePositions | None = None  # where ropes know three positions per token and there are images

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def for_adapter(self, lora_id: int) -> "Prompt":
        """The same for an adapter that changes how pictures are seen; see `EncoderInput.for_adapter`."""
        inputs = {mm_hash: entry.for_adapter(lora_id) for mm_hash, entry in self.encoder_inputs.items()}
        return replace(
            self,
            images=tuple(replace(image, mm_hash=inputs[image.mm_hash].mm_hash) for image in self.images),
            encoder_inputs={entry.mm_hash: entry for entry in inputs.values()},
        )
