"""Vision-language checkpoints: their text decoder, and what sees images where `families.vision` knows it. Where not,
images are refused.

The decoder is a family of its own under `text_config` (Qwen2.5-VL's first files: at the root); what images change in it
is added here: three positions per token (mrope), levels of embeddings (DeepStack).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...blueprint.config_reader import ConfigReader
from ...blueprint.decoder import Decoder, Part
from ...blueprint.model import Model
from ...blueprint.parts import Attention
from ...blueprint.rope import mrope_axes
from ..vision import read_vision

# model_type -> the decoder's, where `text_config` does not name it.
TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "idefics3": "llama",
    "lfm2_vl": "lfm2",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
}
# Decoders that are another family's but for mrope.
SAME_AS = {"qwen2_5_vl_text": "qwen2", "qwen3_vl_moe_text": "qwen3_moe", "qwen3_vl_text": "qwen3"}
# Decoders with mrope: its sections where no key says so, and whether they take turns.
MROPE = {
    "qwen2_5_vl": ((16, 24, 24), False),
    "qwen3_5": ((11, 11, 10), True),
    "qwen3_5_moe": ((11, 11, 10), True),
    "qwen3_vl": ((24, 20, 20), True),
    "qwen3_vl_moe": ((24, 20, 20), True),
}
# Layers of the tower that give a level, where no key says so.
DEEPSTACK = {"qwen3_vl": (8, 16, 24), "qwen3_vl_moe": (8, 16, 24)}
TIED = {"gemma3", "gemma4", "lfm2_vl"}  # where no key says so; the others have a head of their own
# What a `text_config` leaves out where it is transformers' default, of decoders whose family asks for it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "qwen3_moe": {"norm_topk_prob": True},
}
# Keys of the whole that count for the decoder: always, or where `text_config` does not have them.
OUTER = ("tie_word_embeddings", "eos_token_id", "quantization_config")
COMMON = ("dtype", "torch_dtype")

PREFIXES = (
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.visual.", "visual."),
    ("model.vision_model.", "vision_model."),
    ("model.connector.", "connector."),
    ("model.image_newline", "image_newline"),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
TOWERS = "visual|vision_tower|vision_model|multi_modal_projector|connector|embed_vision|audio_tower|embed_audio"


# Old files hold numbers that count positions.
COUNTED = r"vision_tower\.embeddings\.position_ids"


def model(
    config: ConfigReader, preprocessor: ConfigReader | None, read_model: Callable[[Mapping[str, Any], str], Model]
) -> Model:
    """The blueprint of the whole, whose tensors are found under the names that these checkpoints have.

    preprocessor: of pictures. read_model: of a whole configuration, and what errors call it.
    """
    model_type = config.one_of("model_type", tuple(TEXT_TYPES))
    text_config, where = _text_config(config, model_type), "config.text_config" if "text_config" in config else "config"
    text = read_model(text_config, where)
    decoder = text.decoder
    if model_type in MROPE:
        decoder = _with_mrope(decoder, ConfigReader(text_config, where), *MROPE[model_type])
    if model_type in DEEPSTACK and "vision_config" in config:
        tower = config.reader("vision_config")
        levels = tower.indices("deepstack_visual_indexes", tower.count("depth", 27), DEEPSTACK[model_type])
        decoder = replace(decoder, deepstack=len(levels))
    text = replace(text, decoder=decoder)
    vision = read_vision(config, preprocessor, text)
    ignored = rf"(model\.)?({TOWERS})\..*" if vision is None else COUNTED
    return replace(text, vision=vision, prefixes=PREFIXES, ignored=(*text.ignored, ignored))


def _with_mrope(decoder: Decoder, text: ConfigReader, sections: tuple[int, int, int], in_turns: bool) -> Decoder:
    def turned(part: Part) -> Part:
        if not isinstance(part, Attention) or part.rope is None:
            return part
        axes = mrope_axes(text, len(part.rope.inverse_frequencies), sections, in_turns=in_turns)
        return replace(part, rope=replace(part.rope, axes=axes))

    return decoder.with_parts(turned)


def _text_config(config: ConfigReader, model_type: str) -> Mapping[str, Any]:
    at_root = model_type == "qwen2_5_vl" and "text_config" not in config
    reader = config if at_root else config.reader("text_config")
    text = {key: reader.get(key) for key in reader}
    text_type = TEXT_TYPES[model_type] if at_root else reader.get("model_type", TEXT_TYPES[model_type])
    if not isinstance(text_type, str):
        raise reader.error("model_type", text_type, "a string")
    text["model_type"] = SAME_AS.get(text_type, text_type)
    if not any(key in reader for key in COMMON):
        text |= {key: config.get(key) for key in COMMON}
    text |= {key: config.get(key) for key in OUTER if key in config}
    if "tie_word_embeddings" not in config and "tie_word_embeddings" not in reader:
        text["tie_word_embeddings"] = model_type in TIED
    return DEFAULTS.get(text["model_type"], {}) | text
