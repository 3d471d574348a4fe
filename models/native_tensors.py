"""The tensors of the native vision tower: every name and its shape, from the configuration. No torch in here."""

from .native_config import NativeVisionConfig

Shape = tuple[int, ...]
VISION_PREFIX = "vision."


def vision_shapes(vision: NativeVisionConfig, out_size: int) -> dict[str, Shape]:
    """Name -> shape, [out, in] for projections; out_size: the decoder's hidden size."""
    size, inner, merged = vision.hidden_size, vision.intermediate_size, vision.hidden_size * vision.merge_size**2
    shapes: dict[str, Shape] = {
        "patch_embed.weight": (size, 3, vision.patch_size, vision.patch_size),
        "patch_embed.bias": (size,),
        "pos_embed": (1, vision.num_patches, size),
        "norm.weight": (size,),
        "norm.bias": (size,),
    }
    for index in range(vision.num_hidden_layers):
        block = f"blocks.{index}"
        for norm in ("norm1", "norm2"):
            shapes[f"{block}.{norm}.weight"] = shapes[f"{block}.{norm}.bias"] = (size,)
        shapes |= _linear(f"{block}.attn.qkv", 3 * size, size) | _linear(f"{block}.attn.proj", size, size)
        shapes |= _linear(f"{block}.mlp.fc1", inner, size) | _linear(f"{block}.mlp.fc2", size, inner)
    shapes |= _linear("projector.fc1", out_size, merged) | _linear("projector.fc2", out_size, out_size)
    return {VISION_PREFIX + name: shape for name, shape in shapes.items()}


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
