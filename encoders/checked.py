"""CheckedImageProcessor: an image processor whose numbers are what the model's blueprint says, or whose picture is
refused.

Knows no model. What an image processor does follows from a file that anybody may have written.
"""

import numpy as np
from PIL import Image

from .inputs import Encoder, ImageProcessor, ImageTokens, ProcessedImage

TRIAL = (48, 32)  # pixels of the picture that is tried at the start


class ImageTooLargeError(ValueError):
    """An image of more tokens than a prompt may have."""


class CheckedImageProcessor:
    """See `inputs.ImageProcessor`. Whatever the processor raises is a ValueError."""

    def __init__(self, processor: ImageProcessor, tokens: ImageTokens, max_tokens: int) -> None:
        """max_tokens: of a picture; larger ones are refused before they are prepared."""
        self.placeholder_id = processor.placeholder_id
        self.image_token_id = processor.image_token_id
        self._processor = processor
        self._tokens = tokens
        self._max_tokens = max_tokens

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """See `inputs.ImageProcessor`."""
        expected = self._tokens(*image.size).entries
        if (tokens := sum(expected)) > self._max_tokens:
            raise ImageTooLargeError(
                f"an image of {image.width} x {image.height} pixels becomes {tokens} tokens, and a prompt has at most "
                f"{self._max_tokens}"
            )
        try:
            processed = self._processor(image)
        except ValueError as error:
            raise ValueError(one_line(error)) from None
        except Exception as error:  # whatever a configuration or a picture makes a library raise
            what = f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"an image of {image.width} x {image.height} pixels cannot be prepared: {what}") from None
        made = tuple(entry.num_tokens for entry in processed.inputs)
        if made != expected:
            raise ValueError(
                f"the checkpoint's image processor makes {sum(made)} tokens in {len(made)} parts of an image of "
                f"{image.width} x {image.height} pixels, and its configuration says {tokens} in {len(expected)}"
            )
        return processed


def try_out(processor: CheckedImageProcessor, encoder: Encoder) -> None:
    """Prepares and encodes an ordinary picture, unless no prompt has room for it. Raises ValueError where that does not
    go, whatever the reason: nobody should find out with the first request."""
    gradient = np.linspace(1, 255, 3 * TRIAL[0] * TRIAL[1]).reshape(TRIAL[1], TRIAL[0], 3)
    try:
        image = processor(Image.fromarray(gradient.astype(np.uint8)))
    except ImageTooLargeError:
        return
    entry = image.inputs[0]
    for name, values in entry.arrays.items():
        if not np.isfinite(values).all():
            raise ValueError(f"the image processor makes {name} of a picture that are not finite")
    try:
        [embeddings] = encoder([entry])
        finite = bool(embeddings.isfinite().all())
    except Exception as error:
        raise ValueError(f"the vision tower computes nothing: {type(error).__name__}: {one_line(error)}") from None
    if len(embeddings) != entry.num_tokens or not finite:
        what = f"{len(embeddings)} embeddings where a prompt has {entry.num_tokens} tokens" if finite else "NaN"
        raise ValueError(f"the vision tower makes {what} of a picture")


def one_line(error: BaseException) -> str:
    """What an error says, as part of a sentence."""
    return " ".join(str(error).split())[:200] or type(error).__name__
