"""Gemma 4's text decoder: two kinds of attention with heads of their own size, keys that are values, layers that read
another layer's cache, experts beside the MLP, and per-layer inputs. Source: transformers' `modeling_gemma4.py`."""

from collections.abc import Iterator
from dataclasses import replace

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Normed, Residual
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.per_layer import PerLayerEmbedding, PerLayerInput
from ..blueprint.rope import read_rope
from .shared import common

KINDS = {"full_attention": "full_attention", "sliding_attention": "sliding_attention"}
OVERRIDES = ("head_dim", "num_key_value_heads")  # what `per_layer_config` may say of a layer


def model(config: ConfigReader) -> Model:
    """The blueprint of a gemma4_text checkpoint."""
    config.refuse("use_bidirectional_attention", ("vision",), "text is read causally")
    reader = _Reader(config)
    softcap = config.positive("final_logit_softcapping") if "final_logit_softcapping" in config else None
    return common.causal_lm(
        config,
        (Layer(tuple(reader.branches(index))) for index in range(reader.num_layers)),
        reader.norm("model.norm"),
        positions=131072,
        tied=True,
        embedding_multiplier=reader.hidden**0.5,
        embedding_multiplier_rounded=True,
        logits_softcap=softcap,
        per_layer=reader.per_layer_embedding(),
        # Published files hold keys and values also of layers that have none.
        ignored=tuple(
            rf"model\.layers\.{index}\.self_attn\.(k_proj|v_proj|k_norm)\..*"
            for index in range(reader.first_shared, reader.num_layers)
        ),
    )


class _Reader:
    """The keys that layers share, read once."""

    def __init__(self, config: ConfigReader) -> None:
        self._config = config
        self.vocab_size = config.integer("vocab_size")
        self.hidden = config.integer("hidden_size")
        self.num_layers = config.count("num_hidden_layers")
        self._eps = config.positive("rms_norm_eps", 1e-6)
        self._activation = common.activation(config, "hidden_activation", "gelu_pytorch_tanh")
        self._kinds = config.kinds("layer_types", KINDS, self.num_layers)
        if self._kinds[-1] != "full_attention":
            raise config.error(f"layer_types[{self.num_layers - 1}]", self._kinds[-1], "full_attention")
        shared = config.integer("num_kv_shared_layers", 0, at_least=0, at_most=self.num_layers - 1)
        self.first_shared = self.num_layers - shared
        self._per_layer_size = config.integer("hidden_size_per_layer_input", 256, at_least=0)
        config.require("rope_parameters")

    def norm(self, name: str, size: int | None = None, weight: bool = True) -> Norm:
        return Norm(name, size or self.hidden, self._eps, weight=weight)

    def branches(self, index: int) -> Iterator[Residual]:
        """The residual branches of a layer; the last carries the layer's scale."""
        at = f"model.layers.{index}"
        *others, last = self._unscaled(index, at)
        yield from others
        yield replace(last, scale=f"{at}.layer_scalar")

    def _unscaled(self, index: int, at: str) -> Iterator[Residual]:
        yield Residual(
            self.norm(f"{at}.input_layernorm"),
            (self._attention(index, f"{at}.self_attn"),),
            self.norm(f"{at}.post_attention_layernorm"),
        )
        before, after = self.norm(f"{at}.pre_feedforward_layernorm"), self.norm(f"{at}.post_feedforward_layernorm")
        mlp = self._mlp(index, f"{at}.mlp")
        if self._config.flag("enable_moe_block", False):
            beside = Normed(before, mlp, self.norm(f"{at}.post_feedforward_layernorm_1"))
            experts = Normed(None, self._experts(at), self.norm(f"{at}.post_feedforward_layernorm_2"))
            yield Residual(None, (beside, experts), after)
        else:
            yield Residual(before, (mlp,), after)
        if self._per_layer_size:
            part = PerLayerInput(
                gate=f"{at}.per_layer_input_gate",
                down=f"{at}.per_layer_projection",
                hidden_size=self.hidden,
                size=self._per_layer_size,
                layer=index,
                activation=self._activation,
            )
            yield Residual(None, (part,), self.norm(f"{at}.post_per_layer_input_norm"))

    def _attention(self, index: int, at: str) -> Attention:
        config, kind = self._config, self._kinds[index]
        full = kind == "full_attention"
        head_dim, kv_heads = self._sizes(index, full)
        own = index < self.first_shared
        bias = config.flag("attention_bias", False)
        return Attention(
            name=at,
            hidden_size=self.hidden,
            num_heads=config.integer("num_attention_heads"),
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rope=read_rope(config, head_dim, layer_type=kind),
            sliding_window=None if full else config.integer("sliding_window"),
            scale=1.0,
            qkv_bias=bias,
            out_bias=bias,
            q_norm=self.norm(f"{at}.q_norm", head_dim),
            k_norm=self.norm(f"{at}.k_norm", head_dim) if own else None,
            v_norm=self.norm(f"{at}.v_norm", head_dim, weight=False) if own else None,
            values_are_keys=full and config.flag("attention_k_eq_v", False),
            kv_from=None if own else self._source(index),
        )

    def _sizes(self, index: int, full: bool) -> tuple[int, int]:
        """(head_dim, kv heads): published files have keys for all full layers, transformers 5 saves them per layer."""
        config = self._config
        sizes = config.integer("head_dim"), config.integer("num_key_value_heads")
        if "per_layer_config" in config:
            layers = config.reader("per_layer_config")
            if str(index) not in layers:
                return sizes
            layer = layers.reader(str(index))
            for key in layer:
                if key not in OVERRIDES:
                    raise layer.error(key, layer.get(key), f"absent: a layer may have its own {', '.join(OVERRIDES)}")
            return layer.integer("head_dim", sizes[0]), layer.integer("num_key_value_heads", sizes[1])
        if not full:
            return sizes
        kv_heads = sizes[1]
        if config.flag("attention_k_eq_v", False):
            kv_heads = config.integer("num_global_key_value_heads", kv_heads)
        return config.integer("global_head_dim", 512), kv_heads

    def _source(self, index: int) -> str:
        """The last layer of the same kind that has keys and values."""
        kind = self._kinds[index]
        for source in reversed(range(self.first_shared)):
            if self._kinds[source] == kind:
                return f"model.layers.{source}.self_attn"
        shared = self.num_layers - self.first_shared
        raise self._config.error("num_kv_shared_layers", shared, f"so few that a layer before has {kind}")

    def _mlp(self, index: int, at: str) -> MLP:
        wide = self._config.flag("use_double_wide_mlp", False) and index >= self.first_shared
        inner = self._config.integer("intermediate_size") * (2 if wide else 1)
        return MLP(at, self.hidden, inner, self._activation)

    def _experts(self, at: str) -> MoE:
        router = Router(
            f"{at}.router.proj",
            "softmax",
            normalise=True,
            norm=self.norm(f"{at}.router.norm", weight=False),
            input_scale=f"{at}.router.scale",
            expert_scale=f"{at}.router.per_expert_scale",
        )
        return MoE(
            name=f"{at}.experts",
            hidden_size=self.hidden,
            intermediate_size=self._config.integer("moe_intermediate_size"),
            num_experts=self._config.count("num_experts"),
            top_k=self._config.integer("top_k_experts"),
            router=router,
            layout="stacked",
            experts=f"{at}.experts",
            activation=self._activation,
            norm=self.norm(f"{at}.pre_feedforward_layernorm_2"),
        )

    def per_layer_embedding(self) -> PerLayerEmbedding | None:
        if not self._per_layer_size:
            return None
        vocab = self._config.integer("vocab_size_per_layer_input", 262144)
        if vocab != self.vocab_size:
            raise self._config.error("vocab_size_per_layer_input", vocab, f"vocab_size ({self.vocab_size})")
        return PerLayerEmbedding(
            table="model.embed_tokens_per_layer.weight",
            projection="model.per_layer_model_projection",
            norm=self.norm("model.per_layer_projection_norm", self._per_layer_size),
            vocab_size=vocab,
            hidden_size=self.hidden,
            num_layers=self.num_layers,
            size=self._per_layer_size,
        )
