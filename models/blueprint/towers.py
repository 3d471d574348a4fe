"""Towers: vision transformers that families share, as tensors with shapes. Source: transformers' `modeling_siglip.py`,
`modeling_siglip2.py`, `modeling_clip.py` and `modeling_pixtral.py`."""

from dataclasses import dataclass
from math import isqrt

from .config_reader import ConfigReader
from .parts import Shapes, linear


@dataclass(frozen=True, slots=True)
class Tower:
    """A tower that reads square pictures of one size; Pixtral and SigLIP 2: of any shape, `image_size` then is a usual
    side. class_tokens: features that come before those of the patches."""

    tensors: Shapes
    hidden_size: int
    num_hidden_layers: int
    image_size: int  # pixels per side
    patch_size: int
    class_tokens: int

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size

    @property
    def num_features(self) -> int:
        return self.patches_per_side**2 + self.class_tokens


def read_tower(config: ConfigReader, default: str, allowed: tuple[str, ...], name: str = "vision_tower") -> Tower:
    """The tower that a `vision_config` describes. default: the model_type where it has none. name: of its module."""
    model_type = config.one_of("model_type", allowed, default)
    return _TOWERS[model_type](config, name)


def siglip(config: ConfigReader, name: str) -> Tower:
    """SigLIP: patches only, and a pooling head that no decoder reads."""
    return _vit(config, name, patch_size=16, class_token=False, head=config.flag("vision_use_head", True))


def clip(config: ConfigReader, name: str) -> Tower:
    """CLIP: a class token before the patches."""
    return _vit(config, name, patch_size=32, class_token=True, head=False)


def siglip2(config: ConfigReader, name: str) -> Tower:
    """SigLIP 2 that takes patches of pictures of any shape; positions of a square of them are stretched to it."""
    size, inner, layers, _ = _sizes(config)
    patch, patches = config.integer("patch_size", 16), config.integer("num_patches", 256)
    if isqrt(patches) ** 2 != patches:
        raise config.error("num_patches", patches, "a square")
    shapes = linear("embeddings.patch_embedding", size, 3 * patch**2, bias=True)
    shapes |= {"embeddings.position_embedding.weight": (patches, size)}
    shapes |= _layers(size, inner, layers, config.flag("vision_use_head", True))
    return Tower(_named(shapes, name), size, layers, isqrt(patches) * patch, patch, 0)


def pixtral(config: ConfigReader, name: str) -> Tower:
    """Pixtral: a decoder's layers without biases, and positions by rotation."""
    size, inner, layers, heads = _sizes(config, 1024, 4096, 24, 16)
    config.multiple("hidden_size", size, "4 * num_attention_heads", 4 * heads)  # rotated in two directions
    side, patch = config.integer("image_size", 1024), config.integer("patch_size", 16)
    shapes: Shapes = {"patch_conv.weight": (size, 3, patch, patch), "ln_pre.weight": (size,)}
    for index in range(layers):
        at = f"transformer.layers.{index}"
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes |= linear(f"{at}.attention.{projection}", size, size)
        shapes |= {f"{at}.attention_norm.weight": (size,), f"{at}.ffn_norm.weight": (size,)}
        shapes |= linear(f"{at}.feed_forward.gate_proj", inner, size)
        shapes |= linear(f"{at}.feed_forward.up_proj", inner, size)
        shapes |= linear(f"{at}.feed_forward.down_proj", size, inner)
    return Tower(_named(shapes, name), size, layers, side, patch, 0)


def _vit(config: ConfigReader, name: str, patch_size: int, class_token: bool, head: bool) -> Tower:
    """patch_size: where the configuration has none."""
    size, inner, layers, _ = _sizes(config)
    side, patch = config.integer("image_size", 224), config.integer("patch_size", patch_size)
    per_side = side // patch
    if per_side < 1:
        raise config.error("image_size", side, f"at least patch_size ({patch})")
    shapes: Shapes = {
        "embeddings.patch_embedding.weight": (size, 3, patch, patch),
        "embeddings.position_embedding.weight": (per_side**2 + class_token, size),
    }
    if class_token:
        shapes["embeddings.class_embedding"] = (size,)
        shapes |= norm("pre_layrnorm", size)
    else:
        shapes["embeddings.patch_embedding.bias"] = (size,)
    shapes |= _layers(size, inner, layers, head)
    return Tower(_named(shapes, name), size, layers, side, patch, int(class_token))


def _sizes(
    config: ConfigReader, hidden: int = 768, inner: int = 3072, layers: int = 12, heads: int = 12
) -> tuple[int, int, int, int]:
    """These four, here where the configuration has none."""
    size, heads = config.integer("hidden_size", hidden), config.integer("num_attention_heads", heads)
    config.multiple("hidden_size", size, "num_attention_heads", heads)
    config.refuse("num_channels", (3,), "pictures have three")
    return size, config.integer("intermediate_size", inner), config.count("num_hidden_layers", layers), heads


def _layers(size: int, inner: int, number: int, head: bool) -> Shapes:
    """What follows the embeddings. head: what pools all features."""
    shapes: Shapes = {}
    for index in range(number):
        at = f"encoder.layers.{index}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= linear(f"{at}.self_attn.{projection}", size, size, bias=True)
        shapes |= norm(f"{at}.layer_norm1", size) | norm(f"{at}.layer_norm2", size) | _mlp(f"{at}.mlp", size, inner)
    shapes |= norm("post_layernorm", size)
    if head:
        shapes |= {"head.probe": (1, 1, size), "head.attention.in_proj_weight": (3 * size, size)}
        shapes |= {"head.attention.in_proj_bias": (3 * size,)}
        shapes |= linear("head.attention.out_proj", size, size, bias=True)
        shapes |= norm("head.layernorm", size) | _mlp("head.mlp", size, inner)
    return shapes


def _named(shapes: Shapes, name: str) -> Shapes:
    return {f"{name}.{tensor}": shape for tensor, shape in shapes.items()}


def norm(name: str, size: int) -> Shapes:
    """The tensors of a LayerNorm."""
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _mlp(name: str, size: int, inner: int) -> Shapes:
    return linear(f"{name}.fc1", inner, size, bias=True) | linear(f"{name}.fc2", size, inner, bias=True)


_TOWERS = {
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "clip_vision_model": clip,
    "pixtral": pixtral,
}
