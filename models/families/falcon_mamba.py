"""Falcon Mamba: Mamba with norms without weights on dt, b and c. Source: transformers' `modeling_falcon_mamba.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from .shared import mamba_stack


def model(config: ConfigReader) -> Model:
    """The blueprint of a falcon_mamba checkpoint."""
    eps = config.positive("mixer_rms_eps", 1e-6)

    def norm(name: str, size: int) -> Norm:
        return Norm(name, size, eps, weight=False)

    return mamba_stack.model(config, lambda at: mamba_stack.mamba1(config, at, norm), tied=True)
