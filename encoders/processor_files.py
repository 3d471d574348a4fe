"""The files in which a checkpoint says how its pictures are prepared. Knows JSON; neither transformers nor torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WHOLE, ALONE = "processor_config.json", "preprocessor_config.json"


def whole_keys(folder: Path) -> Mapping[str, Any]:
    """Of the processor of texts and pictures together; none where no file describes it. Raises ValueError."""
    return _read(folder / WHOLE) or {}


def image_keys(folder: Path) -> Mapping[str, Any] | None:
    """Of the image processor, from the file that transformers would take; None where no file describes it. Raises
    ValueError."""
    keys = whole_keys(folder).get("image_processor")
    return keys if isinstance(keys, dict) else _read(folder / ALONE)


def _read(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not isinstance(keys, dict):
        raise ValueError(f"{file} holds no JSON object")
    return keys
