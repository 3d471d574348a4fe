"""LFM2: see `lfm_hybrid`; the same MLP in all layers, of a size to be worked out. Source: transformers'
`modeling_lfm2.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from ..blueprint.parts import MLP
from .shared import lfm_hybrid


def model(config: ConfigReader) -> Model:
    """The blueprint of an lfm2 checkpoint."""
    size = _intermediate_size(config)

    def feed_forward(index: int, at: str) -> MLP:
        del index
        return lfm_hybrid.mlp(config, at, size)

    return lfm_hybrid.model(config, _kinds(config), feed_forward)


def _intermediate_size(config: ConfigReader) -> int:
    """Two thirds of what is written (`block_ff_dim` in old files), times a factor, rounded up to a multiple."""
    size = config.integer(config.either("block_ff_dim", "intermediate_size"))
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    size = 2 * size // 3
    if config.is_null("block_ffn_dim_multiplier"):
        return size
    size = config.scaled("block_ffn_dim_multiplier", size, 1.0)
    multiple = config.integer("block_multiple_of", 256)
    return -(-size // multiple) * multiple


def _kinds(config: ConfigReader) -> list[str]:
    """What mixes the tokens of every layer: `layer_types`, or `full_attn_idxs` in old files, or attention in all."""
    layers = config.count("num_hidden_layers")
    if "layer_types" in config:
        return config.kinds("layer_types", lfm_hybrid.KINDS, layers)
    attend = config.indices("full_attn_idxs", layers, range(layers))
    return ["full" if index in attend else "conv" for index in range(layers)]
