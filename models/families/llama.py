"""Llama 2 and 3.x, SmolLM2: full attention with rope, SwiGLU. Source: transformers' `modeling_llama.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Decoder, Layer, Residual
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.rope import read_rope
from . import common


def model(config: ConfigReader) -> Model:
    """The blueprint of a llama checkpoint."""
    common.refuse_quantised(config)
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    heads = config.integer("num_attention_heads")
    head_dim = common.head_dim(config)
    rope = read_rope(config, head_dim, theta=10000.0)
    bias = config.flag("attention_bias", False)

    def layer(at: str) -> Layer:
        attention = Attention(
            name=f"{at}.self_attn",
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rope=rope,
            qkv_bias=bias,
            out_bias=bias,
        )
        mlp = MLP(
            name=f"{at}.mlp",
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            activation=common.activation(config, default="silu"),
            bias=config.flag("mlp_bias", False),
        )
        return Layer(
            (
                Residual(Norm(f"{at}.input_layernorm", hidden, eps), (attention,)),
                Residual(Norm(f"{at}.post_attention_layernorm", hidden, eps), (mlp,)),
            )
        )

    return Model(
        decoder=Decoder(
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden,
            max_positions=config.integer("max_position_embeddings", 2048),
            layers=tuple(layer(f"model.layers.{i}") for i in range(config.integer("num_hidden_layers"))),
            embedding="model.embed_tokens.weight",
            norm=Norm("model.norm", hidden, eps),
            head=common.head_name(config),
        ),
        dtype=common.dtype(config),
        eos_token_ids=common.eos_token_ids(config),
        ignored=(common.OLD_BUFFERS,),
    )
