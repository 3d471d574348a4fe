"""Model: a whole checkpoint as a blueprint: the decoder, what sees images, and what serving needs to know of both."""

from dataclasses import dataclass, replace

from hybrid.pools.specs import EncoderSpec, ModelSpec, dtype_bytes

from ..native_config import NativeVisionConfig
from .decoder import Decoder, Part
from .experts import MoE
from .parts import CacheDtypes, Shapes
from .recurrent import GatedDeltaNet

# How names in a checkpoint may begin, and how the blueprint's do instead; the first that fits a name counts.
Prefixes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A family's answer to a `config.json`."""

    decoder: Decoder
    dtype: str  # of the checkpoint's weights, as torch spells it
    eos_token_ids: tuple[int, ...]
    vision: NativeVisionConfig | None = None
    vision_tensors: Shapes | None = None
    image_token_id: int | None = None
    ignored: tuple[str, ...] = ()  # regular expressions: tensors that a checkpoint may hold and the engine does not use
    prefixes: Prefixes = ()

    def tensors(self) -> Shapes:
        """Name -> shape of everything that the checkpoint must hold."""
        return self.decoder.tensors() | (self.vision_tensors or {})

    def as_stored(self, shapes: Shapes) -> "Model":
        """The same model for a checkpoint that holds `shapes`, where a part may be stored in several ways."""

        def stored(part: Part) -> Part:
            return part.as_stored(shapes) if isinstance(part, MoE | GatedDeltaNet) else part

        layers = tuple(
            replace(layer, branches=tuple(replace(b, parts=tuple(map(stored, b.parts))) for b in layer.branches))
            for layer in self.decoder.layers
        )
        return replace(self, decoder=replace(self.decoder, layers=layers))

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
