"""Gemma 3 without images: five sliding layers to a full one, each kind with its rope; norms on queries and keys.
Source: transformers' `modeling_gemma3.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from ..blueprint.parts import Attention
from .shared import gemmas
from .shared.attention_only import FULL, SLIDING, every_nth_full, rope_of_kind, windows

# Published files leave out what transformers has as its default.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def model(config: ConfigReader) -> Model:
    """The blueprint of a gemma3_text checkpoint."""
    config = config.with_defaults(_DEFAULTS)
    config.refuse("attn_logit_softcapping", (), "Gemma 3 computes without it")
    head_dim = gemmas.head_dim(config)
    period = config.integer(config.either("sliding_window_pattern", "_sliding_window_pattern"), 6)
    window = windows(config, every_nth_full(period))
    full = rope_of_kind(config, head_dim, FULL, config.positive("rope_theta", 1000000.0))
    sliding = rope_of_kind(config, head_dim, SLIDING, config.positive("rope_local_base_freq", 10000.0))

    def mixer(index: int, at: str) -> Attention:
        return gemmas.mixer(
            config,
            at,
            full if window[index] is None else sliding,
            sliding_window=window[index],
            q_norm=gemmas.norm(config, f"{at}.self_attn.q_norm", head_dim),
            k_norm=gemmas.norm(config, f"{at}.self_attn.k_norm", head_dim),
        )

    return gemmas.model(config, mixer, 131072, gemmas.softcap(config, "final_logit_softcapping", None))
