"""Gemma 2: sliding and full attention in turn, scores and logits soft-capped. Source: transformers'
`modeling_gemma2.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from ..blueprint.parts import Attention
from .shared import gemmas
from .shared.attention_only import every_nth_full, whole_rope, windows


def model(config: ConfigReader) -> Model:
    """The blueprint of a gemma2 checkpoint."""
    rope = whole_rope(config, gemmas.head_dim(config))
    window = windows(config, every_nth_full(2))
    softcap = gemmas.softcap(config, "attn_logit_softcapping", 50.0)

    def mixer(index: int, at: str) -> Attention:
        return gemmas.mixer(config, at, rope, sliding_window=window[index], softcap=softcap)

    return gemmas.model(config, mixer, 8192, gemmas.softcap(config, "final_logit_softcapping", 30.0))
