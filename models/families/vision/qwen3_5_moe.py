"""Qwen3.5's images, for its mixture of experts."""

from .qwen3_5 import vision

__all__ = ["vision"]
