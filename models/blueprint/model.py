"""Model: a whole checkpoint as a blueprint: the decoder, what sees images, and what serving needs to know of both."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from hybrid.pools.specs import EncoderSpec, ModelSpec, dtype_bytes

from ..native_config import NativeVisionConfig
from .decoder import Decoder, Layer, Part
from .experts import MoE
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
    # (regular expression, replacement): what else a tensor is called in some files -> its name here; the first that
    # matches at the beginning of a name counts
    renames: tuple[tuple[str, str], ...] = ()

    def tensors(self) -> Shapes:
        """Name -> shape of everything that the checkpoint must hold."""
        return self.decoder.tensors() | (self.vision_tensors or {})

    def as_stored(self, names: Collection[str]) -> "Model":
        """The same model for a checkpoint that holds `names`: experts are stacked where it stacks them."""

        def stored(part: Part) -> Part:
            if isinstance(part, MoE) and part.layout == "list" and f"{part.experts}.{part.stacked[0]}" in names:
                return replace(part, layout="stacked")
            return part

        layers = tuple(
            Layer(tuple(replace(branch, parts=tuple(map(stored, branch.parts))) for branch in layer.branches))
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
