"""What a checkpoint says of how its pictures are prepared, as far as sizes follow from it. Knows files; no torch."""

from pathlib import Path

from .config_reader import ConfigReader
from .json_object import read_json

FILE, WHOLE = "preprocessor_config.json", "processor_config.json"


def read_preprocessor(folder: Path) -> ConfigReader | None:
    """The configuration of a folder's image processor, from the file that transformers would take; None where there is
    none. Raises ValueError."""
    whole = read_json(folder / WHOLE) or {}
    if "image_processor" in whole:
        reader = ConfigReader(whole, WHOLE).reader("image_processor")
    elif (alone := read_json(folder / FILE)) is not None:
        reader = ConfigReader(alone, FILE)
    else:
        return None
    # null leaves a step out, where a key that is absent means transformers' default
    skipped = {key: False for key in reader if key.startswith("do_") and reader.is_null(key)}
    return ConfigReader({**{key: reader.get(key) for key in reader}, **skipped}, reader.where)
