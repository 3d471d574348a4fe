"""SmolVLM: as Idefics 3."""

from .idefics3 import encoder, image_processor

__all__ = ["encoder", "image_processor"]
