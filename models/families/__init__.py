"""Model families: one file each, from the keys of a `config.json` to a blueprint. No torch in here.

A family's file has one public function, `model(config)`; what several share is in `shared`. Checkpoints that see images
are the text decoders that they hold, and what `vision` says of their images.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from hybrid.pools.specs import ModelSpec

from ..blueprint.config_reader import ConfigReader, shown
from ..blueprint.model import Model
from .shared import vision_language
from .shared.common import refuse_quantised
from .shared.vision_language import TEXT_TYPES

# Every model_type that is read: a family's file is named after its own.
FAMILIES = {module.name for module in iter_modules(__path__) if not module.ispkg} | TEXT_TYPES.keys()


class Family(Protocol):
    """What a family's file offers."""

    def model(self, config: ConfigReader) -> Model:
        """The blueprint of a checkpoint. Raises ValueError naming the key and value of what is not supported."""
        ...


def read_model(config: Mapping[str, Any], where: str = "config", preprocessor: ConfigReader | None = None) -> Model:
    """The blueprint of a whole `config.json`. Raises ValueError naming the key and the value.

    where: what errors call it. preprocessor: how pictures are prepared, where the checkpoint says it. A configuration
    of the package `mamba_ssm` has no model_type: `ssm_cfg` tells it.
    """
    model_type = config.get("model_type", "mamba_ssm" if "ssm_cfg" in config else None)
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise ValueError(f"model_type {shown(model_type)} is not supported; supported are {supported}")
    reader = ConfigReader(config, where)
    refuse_quantised(reader)
    if model_type in TEXT_TYPES:
        return vision_language.model(reader, preprocessor, read_model)
    family: Family = import_module(f".{model_type}", __name__)
    return family.model(reader)


def layer_specs(config: Mapping[str, Any], dtype: str = "bfloat16", state_dtype: str = "float32") -> ModelSpec:
    """What a model keeps per layer, from its `config.json` alone; dtypes as in `Model.spec`. Raises ValueError.

    Weights may be quantised, which loading refuses: it changes nothing that is kept.
    """
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    return read_model(plain).spec(dtype, state_dtype)
