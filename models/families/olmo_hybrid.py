"""OLMo Hybrid: gated delta nets with norms before, full attention with norms after, with rope or without any.
Source: transformers' `modeling_olmo_hybrid.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Residual
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import GatedDeltaNet
from ..blueprint.rope import Rope, read_rope
from .shared import common

KINDS = {"linear_attention": "delta", "full_attention": "full"}
OUTPUT_NORM_EPS = 1e-5  # of the delta net's norm, whatever rms_norm_eps says
# What norms are called in files, where transformers calls them otherwise.
NORMS = (("attention_layer_norm", "input_layernorm"), ("feedforward_layer_norm", "post_attention_layernorm"))


def model(config: ConfigReader) -> Model:
    """The blueprint of an olmo_hybrid checkpoint."""
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    kinds = _kinds(config)
    rope = _rope(config)

    def attention(at: str) -> Attention:
        heads, head_dim = config.integer("num_attention_heads"), common.head_dim(config)
        kv_heads = config.integer("num_key_value_heads", heads)
        bias = config.flag("attention_bias", False)
        return Attention(
            name=at,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rope=rope,
            qkv_bias=bias,
            out_bias=bias,
            q_norm=Norm(f"{at}.q_norm", heads * head_dim, eps),
            k_norm=Norm(f"{at}.k_norm", kv_heads * head_dim, eps),
        )

    def delta_net(at: str) -> GatedDeltaNet:
        heads = config.integer("num_attention_heads")
        k_heads = config.integer("linear_num_key_heads", heads)
        k_head_dim = config.integer("linear_key_head_dim", int(0.75 * hidden / k_heads))
        v_head_dim = config.integer("linear_value_head_dim", 2 * k_head_dim)
        return GatedDeltaNet(
            name=at,
            hidden_size=hidden,
            num_k_heads=k_heads,
            num_v_heads=config.integer("linear_num_value_heads", heads),
            k_head_dim=k_head_dim,
            v_head_dim=v_head_dim,
            conv_kernel=config.integer("linear_conv_kernel_dim", 4, at_least=2),
            norm=Norm(f"{at}.o_norm", v_head_dim, OUTPUT_NORM_EPS),
            layout="separate",
            negative_eigenvalues=config.flag("linear_allow_neg_eigval", True),
        )

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        mlp = MLP(f"{at}.mlp", hidden, config.integer("intermediate_size"), common.silu(config))

        def norm(name: str) -> Norm:
            return Norm(f"{at}.{name}", hidden, eps)

        if kind == "full":
            return Layer(
                (
                    Residual(None, (attention(f"{at}.self_attn"),), norm("post_attention_layernorm")),
                    Residual(None, (mlp,), norm("post_feedforward_layernorm")),
                )
            )
        return common.pre_norm_layer(
            (norm("input_layernorm"), delta_net(f"{at}.linear_attn")), (norm("post_attention_layernorm"), mlp)
        )

    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(kinds)),
        Norm("model.norm", hidden, eps),
        positions=65536,
        prefixes=tuple(
            (f"model.layers.{index}.{there}.", f"model.layers.{index}.{here}.")
            for index in range(len(kinds))
            for there, here in NORMS
        ),
    )


def _kinds(config: ConfigReader) -> list[str]:
    """What mixes the tokens of every layer: without a list every fourth attends, and the last where there is none."""
    layers = config.count("num_hidden_layers")
    if "layer_types" in config:
        return config.kinds("layer_types", KINDS, layers)
    kinds = ["full" if index % 4 == 3 else "delta" for index in range(layers)]
    return kinds if "full" in kinds else [*kinds[:-1], "full"]


def _rope(config: ConfigReader) -> Rope | None:
    """None where `rope_theta` is null, which is not the same as absent: then it is 10000."""
    where = config
    if "rope_parameters" in config and "rope_theta" in list(config.reader("rope_parameters")):
        where = config.reader("rope_parameters")
    if where.is_null("rope_theta"):
        return None
    return read_rope(config, common.head_dim(config), theta=10000.0)
