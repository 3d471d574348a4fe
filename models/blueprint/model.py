"""Model: a whole checkpoint as a blueprint: the decoder, what sees images, and what serving needs to know of both."""

from dataclasses import dataclass

from hybrid.pools.specs import EncoderSpec, ModelSpec, dtype_bytes

from ..native_config import NativeVisionConfig
from .decoder import Decoder
from .parts import CacheDtypes, Shapes


@dataclass(frozen=True, slots=True)
class Model:
    """A family's answer to a `config.json`."""

    decoder: Decoder
    dtype: str  # of the checkpoint's weights, as torch spells it
    eos_token_ids: tuple[int, ...]
    vision: NativeVisionConfig | None = None
    vision_tensors: Shapes | None = None
    image_token_id: int | None = None
    ignored: tuple[
        str, ...
    ] = ()  # regular expressions: tensors that the checkpoint may hold and the engine does not use
    # How names begin: (in the checkpoint, here); the first that fits a name counts.
    prefixes: tuple[tuple[str, str], ...] = ()

    def tensors(self) -> Shapes:
        """Name -> shape of everything that the checkpoint must hold."""
        return self.decoder.tensors() | (self.vision_tensors or {})

    def spec(self, dtype: str, state_dtype: str = "float32") -> ModelSpec:
        """What the model keeps: dtype of keys, values, convolution tails and image embeddings; of recurrent states.

        Raises ValueError for a dtype that `hybrid.pools.specs` does not list.
        """
        dtype_bytes(dtype)
        return ModelSpec(
            layers=self.decoder.layer_specs(CacheDtypes(dtype, state_dtype)),
            encoder=None
            if self.vision is None
            else EncoderSpec(self.decoder.hidden_size, self.vision.num_image_tokens, dtype),
        )
