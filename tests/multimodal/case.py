"""Case: what makes a tiny vision-language checkpoint of a family, and what is special about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, ProcessorMixin

from .tiny_tokenizer import END, VOCAB_SIZE

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 1024,
    "eos_token_id": END,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
VIT: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@dataclass(frozen=True, slots=True)
class Case:
    """processor: transformers' processor of the whole model, made when it is needed. token_types: the name of the
    argument that tells transformers' model where image tokens are, if it has one. embedding_gain: of the table of
    tokens; less where it is tied and would have every token repeat itself."""

    config: PreTrainedConfig
    processor: Callable[[], ProcessorMixin]
    token_types: str | None = None
    embedding_gain: float = 1.0
