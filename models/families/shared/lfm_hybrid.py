"""LFM2: gated short convolutions, and full attention with norms on queries and keys. No family by itself.
Source: transformers' `modeling_lfm2.py`."""

from collections.abc import Callable, Sequence

from ...blueprint.config_reader import ConfigReader
from ...blueprint.decoder import Layer
from ...blueprint.experts import MoE
from ...blueprint.model import Model
from ...blueprint.parts import MLP, Attention, Norm
from ...blueprint.recurrent import ShortConv
from ...blueprint.rope import read_rope
from . import common

KINDS = {"conv": "conv", "full_attention": "full"}
PROJECTIONS = ("w1", "w3", "w2")  # gate, up, down


def model(config: ConfigReader, kinds: Sequence[str], feed_forward: Callable[[int, str], MLP | MoE]) -> Model:
    """The blueprint of a checkpoint. kinds: of every layer; feed_forward(layer, name) ends a layer."""
    hidden, eps = config.integer("hidden_size"), config.positive("norm_eps", 1e-5)
    heads, head_dim = config.integer("num_attention_heads"), common.head_dim(config)
    rope = read_rope(config, head_dim, theta=1000000.0)
    kernel, bias = config.integer("conv_L_cache", 3, at_least=2), config.flag("conv_bias", False)

    def attention(at: str) -> Attention:
        return Attention(
            name=at,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rope=rope,
            q_norm=Norm(f"{at}.q_layernorm", head_dim, eps),
            k_norm=Norm(f"{at}.k_layernorm", head_dim, eps),
            projections=("q_proj", "k_proj", "v_proj", "out_proj"),
        )

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        mixer = attention(f"{at}.self_attn") if kind == "full" else ShortConv(f"{at}.conv", hidden, kernel, bias)
        return common.pre_norm_layer(
            (Norm(f"{at}.operator_norm", hidden, eps), mixer),
            (Norm(f"{at}.ffn_norm", hidden, eps), feed_forward(index, f"{at}.feed_forward")),
        )

    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(kinds)),
        Norm("model.embedding_norm", hidden, eps),  # the last norm, in spite of its name
        positions=128000,
        tied=True,
        tied_key=config.either("tie_embedding", "tie_word_embeddings"),
    )


def mlp(config: ConfigReader, at: str, intermediate_size: int) -> MLP:
    """SwiGLU."""
    return MLP(at, config.integer("hidden_size"), intermediate_size, projections=PROJECTIONS)
