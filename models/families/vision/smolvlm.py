"""SmolVLM's images: as Idefics 3's."""

from .idefics3 import vision

__all__ = ["vision"]
