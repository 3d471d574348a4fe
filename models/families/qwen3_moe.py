"""Qwen3 MoE: Qwen3's attention (norms on queries and keys), experts in most layers. Source: transformers'
`modeling_qwen3_moe.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Decoder, Layer, Residual
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.rope import read_rope
from . import common


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen3_moe checkpoint."""
    common.refuse_quantised(config)
    config.refuse("use_sliding_window", (False,), "no published checkpoint uses it")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    heads = config.integer("num_attention_heads")
    head_dim = common.head_dim(config)
    rope = read_rope(config, head_dim, theta=10000.0)
    bias = config.flag("attention_bias", False)
    activation = common.activation(config, default="silu")
    dense_layers = config.entries("mlp_only_layers", default=[])
    step = config.integer("decoder_sparse_step", 1)

    def mlp(index: int, at: str) -> MLP | MoE:
        if index in dense_layers or (index + 1) % step:
            return MLP(at, hidden, config.integer("intermediate_size"), activation)
        return MoE(
            name=at,
            hidden_size=hidden,
            intermediate_size=config.integer("moe_intermediate_size"),
            num_experts=config.integer(config.either("num_experts", "num_local_experts")),
            top_k=config.integer("num_experts_per_tok"),
            router=Router(f"{at}.gate", "softmax", normalise=config.flag("norm_topk_prob", False)),
            layout="list",
            experts=f"{at}.experts",
            activation=activation,
        )

    def layer(index: int) -> Layer:
        at = f"model.layers.{index}"
        attention = Attention(
            name=f"{at}.self_attn",
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rope=rope,
            qkv_bias=bias,
            out_bias=bias,
            q_norm=Norm(f"{at}.self_attn.q_norm", head_dim, eps),
            k_norm=Norm(f"{at}.self_attn.k_norm", head_dim, eps),
        )
        return Layer(
            (
                Residual(Norm(f"{at}.input_layernorm", hidden, eps), (attention,)),
                Residual(Norm(f"{at}.post_attention_layernorm", hidden, eps), (mlp(index, f"{at}.mlp"),)),
            )
        )

    return Model(
        decoder=Decoder(
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden,
            max_positions=config.integer("max_position_embeddings", 32768),
            layers=tuple(layer(index) for index in range(config.integer("num_hidden_layers"))),
            embedding="model.embed_tokens.weight",
            norm=Norm("model.norm", hidden, eps),
            head=common.head_name(config),
        ),
        dtype=common.dtype(config),
        eos_token_ids=common.eos_token_ids(config),
        ignored=(common.OLD_BUFFERS,),
    )
