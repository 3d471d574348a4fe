"""Towers of Qwen's vision-language models, as tensors with shapes; patches are merged into tokens at their end.
Source: transformers' `modeling_qwen2_5_vl.py` and `modeling_qwen3_vl.py`; `modeling_qwen3_5.py` has the latter's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from .config_reader import ConfigReader
from .parts import Shapes, linear
from .towers import norm

NAME = "visual"


@dataclass(frozen=True, slots=True)
class QwenTower:
    """tensors: with what makes `out_hidden_size` elements of merge_size x merge_size patches. patches: their sizes, as
    image processors call them."""

    tensors: Shapes
    patches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the two kinds have in common."""

    depth: int
    hidden: int
    inner: int
    patch: int
    temporal_patch: int
    merge: int

    @classmethod
    def read(cls, config: ConfigReader, hidden: int, depth: int, inner: int, patch: int, decoder_hidden: int) -> Self:
        """hidden, depth, inner, patch: where `vision_config` has none."""
        config.refuse("in_channels", (3,), "pictures have three")
        outputs = config.integer("out_hidden_size", 3584)
        if outputs != decoder_hidden:
            raise config.error("out_hidden_size", outputs, f"the decoder's hidden_size ({decoder_hidden})")
        size, heads = config.integer("hidden_size", hidden), config.integer("num_heads", 16)
        config.multiple("hidden_size", size, "4 times num_heads", 4 * heads)  # ropes of two axes
        return cls(
            config.count("depth", depth),
            size,
            config.integer("intermediate_size", inner),
            config.integer("patch_size", patch),
            config.integer("temporal_patch_size", 2),
            config.integer("spatial_merge_size", 2),
        )

    @property
    def merged(self) -> int:
        """Elements of the patches of one token, side by side."""
        return self.hidden * self.merge**2

    def tower(self, shapes: Shapes) -> QwenTower:
        shapes["patch_embed.proj.weight"] = (self.hidden, 3, self.temporal_patch, self.patch, self.patch)
        for index in range(self.depth):
            shapes |= linear(f"blocks.{index}.attn.qkv", 3 * self.hidden, self.hidden, bias=True)
            shapes |= linear(f"blocks.{index}.attn.proj", self.hidden, self.hidden, bias=True)
        named = {f"{NAME}.{tensor}": shape for tensor, shape in shapes.items()}
        patches = {"patch_size": self.patch, "merge_size": self.merge, "temporal_patch_size": self.temporal_patch}
        return QwenTower(named, patches)


def qwen2_5_tower(config: ConfigReader, out_hidden_size: int) -> QwenTower:
    """RMS norms, gated MLPs, and attention in windows in most blocks."""
    sizes = _Sizes.read(config, 3584, 32, 3420, 14, out_hidden_size)
    window = config.integer("window_size", 112)
    if window // sizes.merge // sizes.patch < 1:
        raise config.error("window_size", window, f"at least {sizes.merge} patches of {sizes.patch} pixels")
    shapes: Shapes = {"merger.ln_q.weight": (sizes.hidden,)}
    for index in range(sizes.depth):
        at = f"blocks.{index}"
        shapes |= {f"{at}.norm1.weight": (sizes.hidden,), f"{at}.norm2.weight": (sizes.hidden,)}
        for projection in ("gate_proj", "up_proj"):
            shapes |= linear(f"{at}.mlp.{projection}", sizes.inner, sizes.hidden, bias=True)
        shapes |= linear(f"{at}.mlp.down_proj", sizes.hidden, sizes.inner, bias=True)
    shapes |= linear("merger.mlp.0", sizes.merged, sizes.merged, bias=True)
    shapes |= linear("merger.mlp.2", out_hidden_size, sizes.merged, bias=True)
    return sizes.tower(shapes)


def qwen3_tower(config: ConfigReader, out_hidden_size: int, levels: int = 0) -> QwenTower:
    """Learned positions, interpolated, and a further merger for every level of DeepStack."""
    sizes = _Sizes.read(config, 1152, 27, 4304, 16, out_hidden_size)
    shapes: Shapes = {
        "patch_embed.proj.bias": (sizes.hidden,),
        "pos_embed.weight": (config.integer("num_position_embeddings", 2304), sizes.hidden),
    }
    for index in range(sizes.depth):
        at = f"blocks.{index}"
        shapes |= norm(f"{at}.norm1", sizes.hidden) | norm(f"{at}.norm2", sizes.hidden)
        shapes |= linear(f"{at}.mlp.linear_fc1", sizes.inner, sizes.hidden, bias=True)
        shapes |= linear(f"{at}.mlp.linear_fc2", sizes.hidden, sizes.inner, bias=True)
    mergers = {"merger": sizes.hidden} | {f"deepstack_merger_list.{level}": sizes.merged for level in range(levels)}
    for merger, normed in mergers.items():
        shapes |= norm(f"{merger}.norm", normed)
        shapes |= linear(f"{merger}.linear_fc1", sizes.merged, sizes.merged, bias=True)
        shapes |= linear(f"{merger}.linear_fc2", out_hidden_size, sizes.merged, bias=True)
    return sizes.tower(shapes)
