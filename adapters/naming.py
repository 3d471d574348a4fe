"""ModuleNames: what PEFT calls the modules of a model -> the canonical names of its LoRA targets. Knows no files.

The same module is called differently by published checkpoints, by transformers (5 renames some) and inside models that
see images. What differs is how a name begins, the word for embeddings, and where stacked experts lie; towers had a
module around them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]

# How names of a decoder's modules may begin; the first that fits is taken away.
ROOTS = (
    "model.language_model.",
    "model.text_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "model.",
)
EMBEDDINGS = ("embed_tokens", "embeddings", "embedding")
# Last parts of names of an expert's projections. Stacked, gate and up are one.
GATE, UP, DOWN = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")
STACKED_UP, STACKED_DOWN = ("gate_up_proj", "up_proj", "input_linear"), ("down_proj", "output_linear")


@dataclass(frozen=True, slots=True)
class ExpertTargets:
    """Canonical names of one layer's stacked experts: up [E, inner, hidden] and down [E, hidden, inner].

    `gated`: up is gate and up together, twice as wide as what down reads.
    """

    up: str
    down: str

    @property
    def gated(self) -> bool:
        return self.up.rpartition(".")[2] != "up_proj"


class ModuleNames:
    """Of one model. `targets` as `Model.lora_targets` gives them: name -> (out, in), stacked experts (E, out, in)."""

    def __init__(self, targets: Mapping[str, Shape]) -> None:
        self.targets = dict(targets)
        self._modules = {_simple(name): name for name, shape in targets.items() if len(shape) == 2}
        experts: dict[str, dict[bool, str]] = {}
        for name, shape in targets.items():
            if len(shape) == 3:
                container, _, last = _simple(name).rpartition(".")
                if last in ("input_linear", "output_linear"):  # granitemoehybrid; transformers has a module for them
                    container = f"{container}.experts"
                experts.setdefault(container, {})[last in STACKED_DOWN] = name
        self._experts = {name: ExpertTargets(of[False], of[True]) for name, of in experts.items() if len(of) == 2}

    def module(self, name: str) -> str | None:
        """The target that is a plain module, or an embedding."""
        return self._modules.get(_simple(name))

    def experts(self, name: str) -> ExpertTargets | None:
        """The targets in the module that holds a layer's experts."""
        return self._experts.get(_simple(name))


def _simple(name: str) -> str:
    for root in ROOTS:
        if name.startswith(root):
            name = name.removeprefix(root)
            break
    name = name.replace("vision_tower.vision_model.", "vision_tower.", 1)
    return "embeddings" if name in EMBEDDINGS else name
