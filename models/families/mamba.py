"""Mamba: nothing but selective scans. Source: transformers' `modeling_mamba.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from .shared import mamba_stack


def model(config: ConfigReader) -> Model:
    """The blueprint of a mamba checkpoint."""
    return mamba_stack.model(config, lambda at: mamba_stack.mamba1(config, at), tied=True)
