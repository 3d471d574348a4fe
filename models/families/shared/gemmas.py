"""What Gemma 2 and 3 share: norms before and after each branch, scaled embeddings, scores by their own scale.

No family itself. Raises ValueError naming the key and the value.
"""

from collections.abc import Callable
from typing import Any

from ...blueprint.config_reader import ConfigReader
from ...blueprint.decoder import Layer, Residual
from ...blueprint.model import Model
from ...blueprint.parts import Attention, Norm
from ...blueprint.rope import Rope
from . import common
from .attention_only import attention, causal_lm, mlp


def norm(config: ConfigReader, name: str, size: int | None = None) -> Norm:
    """A norm whose weight is counted from 1; over the hidden size where none is given."""
    over = config.integer("hidden_size") if size is None else size
    return Norm(name, over, config.positive("rms_norm_eps", 1e-6), offset=1.0)


def mixer(config: ConfigReader, at: str, rope: Rope, **details: Any) -> Attention:
    """The attention of the layer `at`; details: fields of `Attention` that differ from plain ones."""
    bias = config.flag("attention_bias", False)
    scale = config.positive("query_pre_attn_scalar", 256.0) ** -0.5
    return attention(config, at, head_dim(config), rope, scale=scale, qkv_bias=bias, out_bias=bias, **details)


def head_dim(config: ConfigReader) -> int:
    return config.integer("head_dim", 256)


def softcap(config: ConfigReader, key: str, default: float | None) -> float | None:
    """A cap by tanh; none where the key is null, `default` where it is absent."""
    return None if config.is_null(key) or (default is None and key not in config) else config.positive(key, default)


def model(
    config: ConfigReader, mixer: Callable[[int, str], Attention], positions: int, logits_softcap: float | None
) -> Model:
    """The whole model; mixer(index, layer prefix)."""
    config.refuse("use_bidirectional_attention", (False,), "tokens see those before them only")
    activation = common.activation(config, "hidden_activation", "gelu_pytorch_tanh")

    def layer(index: int, at: str) -> Layer:
        around = [norm(config, f"{at}.{name}_layernorm") for name in ("input", "post_attention")]
        after = [norm(config, f"{at}.{name}_feedforward_layernorm") for name in ("pre", "post")]
        return Layer(
            (
                Residual(around[0], (mixer(index, at),), around[1]),
                Residual(after[0], (mlp(config, at, activation=activation),), after[1]),
            )
        )

    return causal_lm(
        config,
        layer,
        positions=positions,
        norm=norm(config, "model.norm"),
        tied=True,
        embedding_multiplier=config.integer("hidden_size") ** 0.5,
        embedding_multiplier_rounded=True,
        logits_softcap=logits_softcap,
    )
