"""Qwen3-VL's images, for its mixture of experts."""

from .qwen3_vl import vision

__all__ = ["vision"]
