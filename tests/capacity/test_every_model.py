"""Planner = engine for every model there is: bundled ones, all published configurations, all tiny test models.

Planned bytes are those of the pool tensors, and the real scheduler runs exactly as many requests as were planned.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hybrid.capacity.model_file import open_model
from hybrid.capacity.planning import plan
from hybrid.capacity.question import Question
from hybrid.capacity.split import Split
from hybrid.runner.caches import Caches
from tests.models.families.oracle import Oracle, all_cases, exporter

from .questions import BY_NAME, peak_running

CASES = all_cases()
LONGEST = 180  # tokens; prompts are so short, and answers so long, that all requests overlap


def config_file(name: str, folder: Path) -> str | Path:
    """What `open_model` takes, made in `folder` where it is a test model."""
    if name not in CASES:
        return BY_NAME.get(name, name)
    export = exporter(name)
    if export is None:
        CASES[name].save_pretrained(folder)
    else:
        Oracle(CASES[name], folder, export=export)
    return folder / "config.json"


@pytest.mark.parametrize("name", ["tiny", "smollm2", *BY_NAME, *CASES])
def test_bytes_and_concurrency(name: str, tmp_path: Path) -> None:
    model = open_model(config_file(name, tmp_path))
    total = min(LONGEST, model.decoder.max_positions)
    asked = Question(
        name=name, model=model, memory_bytes=2**60, context=total // 3, output=total - total // 3, max_num_seqs=9
    )
    split = Split(asked)
    five, six = split.bytes(5).total, split.bytes(6).total
    made = plan(replace(asked, memory_bytes=five + (six - five) * 9 // 10))
    tensors = Caches(made.spec, made.sizes, torch.device("meta")).tensors()
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == made.pools.total <= made.memory_bytes
    assert made.concurrency == 5
    assert peak_running(made) == made.concurrency
