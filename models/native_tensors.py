"""The tensors of the native vision tower: every name and its shape, from the configuration. No torch in here."""

from .blueprint.parts import Shapes, linear
from .native_config import NativeVisionConfig

VISION_PREFIX = "vision."


def vision_shapes(vision: NativeVisionConfig, out_size: int) -> Shapes:
    """Name -> shape, [out, in] for projections; out_size: the decoder's hidden size."""
    size, inner, merged = vision.hidden_size, vision.intermediate_size, vision.hidden_size * vision.merge_size**2
    shapes: Shapes = {
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
        sizes = {"attn.qkv": (3 * size, size), "attn.proj": (size, size)}
        sizes |= {"mlp.fc1": (inner, size), "mlp.fc2": (size, inner)}
        for name, (outputs, inputs) in sizes.items():
            shapes |= linear(f"{block}.{name}", outputs, inputs, bias=True)
    shapes |= linear("projector.fc1", out_size, merged, bias=True)
    shapes |= linear("projector.fc2", out_size, out_size, bias=True)
    return {VISION_PREFIX + name: shape for name, shape in shapes.items()}
