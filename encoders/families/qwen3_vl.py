"""Qwen3-VL: as Qwen2.5-VL. Levels of embeddings are what transformers' model gives."""

from .qwen2_5_vl import encoder, image_processor

__all__ = ["encoder", "image_processor"]
