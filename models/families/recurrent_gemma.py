"""RecurrentGemma (Griffin): RG-LRU blocks and attention over a window. Source: `modeling_recurrent_gemma.py`."""

from itertools import cycle, islice

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import RGLRU
from ..blueprint.rope import read_rope
from .shared import common

BLOCKS = {"recurrent": "recurrent", "attention": "attention"}


def model(config: ConfigReader) -> Model:
    """The blueprint of a recurrent_gemma checkpoint."""
    config.refuse("embeddings_scale_by_sqrt_dim", (True,), "embeddings are always scaled")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    heads, head_dim = config.integer("num_attention_heads"), common.head_dim(config)
    activation = common.activation(config, "hidden_activation", "gelu_pytorch_tanh")
    intermediate = config.integer("intermediate_size", 15360, at_least=2)
    rope = read_rope(config, head_dim, theta=10000.0, rotary_factor=0.5, kinds=("default",))
    window = config.integer(config.either("attention_window_size", "sliding_window"), 2048)
    bias = config.flag("attention_bias", False)

    def norm(name: str) -> Norm:
        return Norm(name, hidden, eps, offset=1.0)

    def temporal(kind: str, at: str) -> Attention | RGLRU:
        if kind == "recurrent":
            return RGLRU(
                name=at,
                hidden_size=hidden,
                width=config.integer("lru_width", hidden),
                num_heads=heads,
                conv_kernel=config.integer("conv1d_width", 4, at_least=2),
                activation=activation,
            )
        return Attention(
            name=at,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rope=rope,
            sliding_window=window,
            qkv_bias=bias,
            out_bias=True,
        )

    def layer(kind: str, at: str) -> Layer:
        mlp = MLP(f"{at}.mlp_block", hidden, intermediate // 2, activation, bias=True)
        return common.pre_norm_layer(
            (norm(f"{at}.temporal_pre_norm"), temporal(kind, f"{at}.temporal_block")),
            (norm(f"{at}.channel_pre_norm"), mlp),
        )

    kinds = config.kinds("block_types", BLOCKS) if "block_types" in config else ["recurrent", "recurrent", "attention"]
    if not kinds:
        raise config.error("block_types", kinds, "a list with at least one entry")
    per_layer = islice(cycle(kinds), config.count("num_hidden_layers"))
    return common.causal_lm(
        config,
        (layer(kind, f"model.layers.{i}") for i, kind in enumerate(per_layer)),
        norm("model.final_norm"),
        positions=common.RECURRENT_POSITIONS,
        tied=True,
        embedding_multiplier=common.bfloat16(hidden**0.5),
        logits_softcap=config.positive("logits_soft_cap", 30.0),
    )
