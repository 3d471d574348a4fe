"""Models for grammars: one that says anything, with the vocabulary of a real one."""

from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SMOLLM2_TOKENS = 49152


def write_random_llama(folder: Path, vocab_size: int = SMOLLM2_TOKENS, eos_token_id: int | list[int] = 2) -> Path:
    """A checkpoint of random weights, so small that all tokens are about equally likely. No tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        eos_token_id=eos_token_id,
        bos_token_id=1,
    )
    cast(Any, LlamaForCausalLM)(config).save_pretrained(folder)
    return folder
