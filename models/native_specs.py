"""What the native architecture keeps per request and layer, from its configuration alone. No torch in here."""

from hybrid.pools.specs import (
    EncoderSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    ModelSpec,
    SlidingWindowSpec,
    dtype_bytes,
)

from .native_config import NativeConfig, NativeLayer


def layer_specs(config: NativeConfig, dtype: str) -> ModelSpec:
    """One spec per layer. `dtype` of keys, values, convolution tails and embeddings; the SSM state is float32.

    Raises ValueError for a dtype that `hybrid.pools.specs` does not list.
    """
    dtype_bytes(dtype)
    vision = config.vision_config
    return ModelSpec(
        layers=tuple((_layer_spec(config, layer, dtype),) for layer in config.layers),
        encoder=None
        if vision is None
        else EncoderSpec(hidden_size=config.hidden_size, max_tokens_per_image=vision.num_image_tokens, dtype=dtype),
    )


def _layer_spec(config: NativeConfig, layer: NativeLayer, dtype: str) -> LayerSpec:
    if layer.mixer == "full":
        return FullAttentionSpec(config.num_key_value_heads, config.head_dim, dtype)
    if layer.mixer == "sliding":
        return SlidingWindowSpec(config.num_key_value_heads, config.head_dim, config.sliding_window, dtype)
    return MambaSpec(
        conv_shape=(config.mamba_conv_dim, config.mamba_conv_kernel - 1),
        ssm_shape=(config.mamba_num_heads, config.mamba_head_dim, config.mamba_state_size),
        conv_dtype=dtype,
        ssm_dtype="float32",
    )
