"""The tensors of a native checkpoint: every name and its shape, from the configuration. No torch in here."""

from .native_config import NativeConfig, NativeLayer, NativeVisionConfig

Shape = tuple[int, ...]
VISION_PREFIX = "vision."


def tensor_shapes(config: NativeConfig) -> dict[str, Shape]:
    """Name -> shape of everything `model.safetensors` must hold, [out, in] for projections; nothing else is allowed."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {"embed_tokens.weight": (vocab, hidden), "norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    for index, layer in enumerate(config.layers):
        for name, shape in _layer_shapes(config, layer).items():
            shapes[f"layers.{index}.{name}"] = shape
    if config.vision_config is not None:
        for name, shape in _vision_shapes(config.vision_config, hidden).items():
            shapes[VISION_PREFIX + name] = shape
    return shapes


def _layer_shapes(config: NativeConfig, layer: NativeLayer) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {"input_norm.weight": (hidden,)}
    if layer.mixer == "mamba2":
        inner, conv, heads = config.mamba_inner_size, config.mamba_conv_dim, config.mamba_num_heads
        shapes["mixer.in_proj.weight"] = (inner + conv + heads, hidden)
        shapes["mixer.conv1d.weight"] = (conv, 1, config.mamba_conv_kernel)
        shapes["mixer.conv1d.bias"] = (conv,)
        shapes["mixer.dt_bias"] = (heads,)
        shapes["mixer.A_log"] = (heads,)
        shapes["mixer.D"] = (heads,)
        shapes["mixer.norm.weight"] = (inner,)
        shapes["mixer.out_proj.weight"] = (hidden, inner)
    else:
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        shapes["mixer.q_proj.weight"] = (queries, hidden)
        shapes["mixer.k_proj.weight"] = (keys, hidden)
        shapes["mixer.v_proj.weight"] = (keys, hidden)
        shapes["mixer.o_proj.weight"] = (hidden, queries)
    if layer.mlp:
        shapes["post_norm.weight"] = (hidden,)
        shapes["mlp.gate_proj.weight"] = (config.intermediate_size, hidden)
        shapes["mlp.up_proj.weight"] = (config.intermediate_size, hidden)
        shapes["mlp.down_proj.weight"] = (hidden, config.intermediate_size)
    return shapes


def _vision_shapes(vision: NativeVisionConfig, out_size: int) -> dict[str, Shape]:
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
    return shapes | _linear("projector.fc1", out_size, merged) | _linear("projector.fc2", out_size, out_size)


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
