"""Pictures and adapters on a pretended GPU: see `tests.runner.test_pretended_gpu`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hybrid import LLM, LoRARequest
from hybrid.encoders.families import image_processor
from hybrid.models.loading import open_checkpoint
from hybrid.runner.launched import RunnerOutput
from hybrid.runner.loading import load
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams
from tests.adapters.written import write_adapter
from tests.pretended.cuda import pretended
from tests.pretended.device import PretendedDevice

from .oracle import Chat, Oracle, all_cases, picture
from .test_families import CHATS, FIRST, engine, tokens

FAMILIES = {name.split(":")[0]: name for name in all_cases()}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """Plain torch computes on it."""
    monkeypatch.setenv("HYBRID_OPS", "torch")
    with pretended(monkeypatch) as made:
        yield made


@pytest.mark.parametrize("name", FAMILIES)
def test_towers(name: str, device: PretendedDevice, tmp_path: Path) -> None:
    """Every family's, in whose code transformers' own is: as on the CPU."""
    Oracle(all_cases()[FAMILIES[name]], tmp_path)
    seen = []
    for where in ("cpu", "cuda"):
        loaded = load(tmp_path, torch.float32, where)
        vision, encoder = loaded.model.vision, loaded.encoder
        assert vision is not None and encoder is not None
        processor = image_processor(loaded.config, tmp_path, vision, encoder, 500)
        assert processor is not None
        entries = [entry for size in ((40, 23), (16, 16)) for entry in processor(picture(1, *size)).inputs]
        embeddings = encoder(entries)
        assert all(tensor.device.type == where for tensor in embeddings)
        seen.append([tensor.cpu() for tensor in embeddings])
    for ours, theirs in zip(seen[1], seen[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["gemma3: windows", "llava: CLIP", "qwen3_vl: levels"])
def test_an_engine(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Requests with pictures and adapters, some of which change how pictures are seen. Nobody waits while a step is
    launched, also one that loads adapters or encodes pictures, unless transformers' code does."""
    oracle = Oracle(all_cases()[case], tmp_path / "model")
    model = open_checkpoint(oracle.folder).model
    assert model.vision is not None
    words, seeing = model.lora_targets(), model.vision.lora_targets()
    adapters = {
        "words": write_adapter(tmp_path / "words", words, 4, 1),
        "both": write_adapter(tmp_path / "both", words | seeing, 11, 2),
    }
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logit_bias={oracle.image_token_id: -100.0})
    batch: list[tuple[Chat, str | None]] = [
        (FIRST, None),
        (FIRST, "words"),
        (FIRST, "both"),
        (CHATS[0], "words"),
    ]
    requests = [None if name is None else LoRARequest(name) for _, name in batch]

    def said() -> list[tuple[int, ...]]:
        llm: LLM = engine(oracle.folder, lora_modules=adapters, max_lora_rank=16, max_num_batched_tokens=64)
        return [
            answer
            for _ in range(2)  # the second time out of the prefix cache
            for answer in tokens(llm.chat([chat for chat, _ in batch], params, use_tqdm=False, lora_request=requests))
        ]

    expected = said()
    assert len(set(expected[:3])) == 3
    monkeypatch.setenv("HYBRID_OPS", "torch")
    launch = ModelRunner.launch
    with pretended(monkeypatch) as device:

        def watched(*args: Any, **options: Any) -> Callable[[], RunnerOutput]:
            before = len(device.waits)
            result = launch(*args, **options)
            assert not [wait for wait in device.waits[before:] if "transformers_encoder" not in wait]
            return result

        monkeypatch.setattr(ModelRunner, "launch", watched)
        assert said() == expected
