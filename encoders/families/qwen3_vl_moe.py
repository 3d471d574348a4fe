"""Qwen3-VL's mixture of experts: as Qwen2.5-VL."""

from .qwen2_5_vl import encoder, image_processor

__all__ = ["encoder", "image_processor"]
