"""transformers' PixtralProcessor, whose module needs torchvision for one function that its Pillow twin has too."""

import sys
from typing import Any

from transformers.models.pixtral import image_processing_pil_pixtral

_TWIN = "transformers.models.pixtral.image_processing_pixtral"


def _load() -> Any:
    try:
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor
    except ImportError:
        sys.modules[_TWIN] = image_processing_pil_pixtral
        try:
            from transformers.models.pixtral.processing_pixtral import PixtralProcessor
        finally:
            del sys.modules[_TWIN]
    return PixtralProcessor


PixtralProcessor = _load()
