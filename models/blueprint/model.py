"""Model: a whole checkpoint as a blueprint: the decoder, what sees images, and what serving needs to know of both."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from hybrid.pools.specs import LORA_RANK_UNIT, EncoderSpec, ModelSpec, dtype_bytes

from .decoder import Decoder, Part
from .experts import MoE
from .parts import CacheDtypes, Shapes
from .recurrent import GatedDeltaNet
from .vision import Vision
from .zamba2 import SharedHybrid

# How names in a checkpoint may begin, and how the blueprint's do instead; the first that fits a name counts.
Prefixes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A family's answer to a `config.json`."""

    decoder: Decoder
    dtype: str  # of the checkpoint's weights, as torch spells it
    eos_token_ids: tuple[int, ...]
    vision: Vision | None = None
    ignored: tuple[str, ...] = ()  # regular expressions: tensors that a checkpoint may hold and the engine does not use
    prefixes: Prefixes = ()

    def tensors(self) -> Shapes:
        """Name -> shape of everything that the checkpoint must hold."""
        return self.decoder.tensors() | (self.vision.tensors if self.vision is not None else {})

    def lora_targets(self) -> Shapes:
        """Canonical module name -> [out, in] of everything that a LoRA adapter may change, what sees images included.

        Names are those of `tensors` without `.weight`: every projection, and tables as (hidden, vocab). Routed experts
        are (E, out, in) under the names of their stacked tensors, whatever the file's layout. A head that is tied is a
        target by itself: a change of the embedding does not change it, as in PEFT.
        """
        decoder = self.decoder
        tables = {decoder.embedding} | ({decoder.per_layer.table} if decoder.per_layer is not None else set())
        experts = [part for part in decoder.plain_parts() if isinstance(part, MoE)]
        left_out = {name for part in experts for name in part.listed}
        # Zamba2's shared blocks: PEFT changes each use of one by itself, here all uses are one.
        left_out |= {name for part in decoder.plain_parts() if isinstance(part, SharedHybrid) for name in part.shared()}
        shapes = {name: shape for name, shape in decoder.tensors().items() if name not in left_out}
        if decoder.head is None and decoder.tied_head is not None:
            shapes[decoder.tied_head] = (decoder.vocab_size, decoder.hidden_size)
        targets: Shapes = {
            name.removesuffix(".weight"): shape[::-1] if name in tables else shape
            for name, shape in shapes.items()
            if name.endswith(".weight") and len(shape) == 2
        }
        for part in experts:
            targets |= part.lora_targets()
        return targets | (self.vision.lora_targets() if self.vision is not None else {})

    def lora_bytes_per_unit(self, dtype: str, modules: Collection[str] | None = None) -> int:
        """Device bytes of one rank unit, 8 rows of A and columns of B for every target that is among `modules`.

        modules: last parts of names, as in PEFT's `target_modules`; None: all targets.
        """
        shapes = [shape for name, shape in self.lora_targets().items() if is_target(name, modules)]
        return dtype_bytes(dtype) * LORA_RANK_UNIT * sum(prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)

    def as_stored(self, shapes: Shapes) -> "Model":
        """The same model for a checkpoint that holds `shapes`, where a part may be stored in several ways."""

        def stored(part: Part) -> Part:
            return part.as_stored(shapes) if isinstance(part, MoE | GatedDeltaNet) else part

        return replace(self, decoder=self.decoder.with_parts(stored))

    def spec(self, dtype: str, state_dtype: str = "float32") -> ModelSpec:
        """What the model keeps: dtype of keys, values, convolution tails and image embeddings; of recurrent states.

        Raises ValueError for a dtype that `hybrid.pools.specs` does not list.
        """
        dtype_bytes(dtype)
        return ModelSpec(
            layers=self.decoder.layer_specs(CacheDtypes(dtype, state_dtype)),
            encoder=None
            if self.vision is None
            else EncoderSpec(
                self.decoder.image_embedding_size, self.vision.tokens.most, dtype, self.vision.tokens.least
            ),
        )


def is_target(name: str, modules: Collection[str] | None) -> bool:
    """Whether a restriction to `modules`, last parts of names, leaves the target; None restricts nothing."""
    return modules is None or any(name == module or name.endswith(f".{module}") for module in modules)
