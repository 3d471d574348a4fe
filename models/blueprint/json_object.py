"""JSON files of a checkpoint, each of which holds one object. Knows none of their keys."""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 128 << 20  # the largest vocabularies and lists of tensors have tens of MB


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, None where there is no file. Raises ValueError for anything else."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES:,} bytes, which no file of its kind is")
    try:
        data = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # integers of thousands of digits too
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data
