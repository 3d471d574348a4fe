"""The pretended GPU refuses and counts what a real one would."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from .cuda import pretended
from .device import PretendedDevice


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    with pretended(monkeypatch) as made:
        yield made


def on_device(*shape: int) -> torch.Tensor:
    return torch.arange(24.0, device="cuda").view(4, 6)[: shape[0]] if shape else torch.ones((), device="cuda")


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x[0, 0].item(),
    "bool": lambda x: bool(x[0, 0] > 0),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(force=True),
    "cpu": lambda x: x.cpu(),
    "mask": lambda x: x[x > 2],
    "nonzero": lambda x: x.nonzero(),
    "repeats": lambda x: x[0].repeat_interleave(torch.arange(6, device="cuda")),
    "values": lambda x: torch.tensor([1, 2], device=x.device),
    "not pinned": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "blocking": lambda x: torch.ones(3).pin_memory().to(x.device),
    "assigned": lambda x: x[0].copy_(torch.ones(6)),
    "array as index": lambda x: x[np.array([0, 2])],
    "list as index": lambda x: x[[0, 2]],
    "host's index": lambda x: x[torch.tensor([0, 2])],
}
FREE: dict[str, Callable[[torch.Tensor], object]] = {
    "pinned": lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True),
    "pinned from the start": lambda x: torch.empty(3, pin_memory=True)[1:].to(x.device, non_blocking=True),
    "to the host": lambda x: x.to("cpu", non_blocking=True),
    "masked": lambda x: x.masked_fill_(x > 2, 0),
    "index": lambda x: x[torch.zeros(2, dtype=torch.int64, device="cuda")],
    "number of the host's": lambda x: x + torch.tensor(1.0),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", [*WAITS, *FREE])
def test_waits(name: str, inference: bool, device: PretendedDevice) -> None:
    with torch.inference_mode(inference):
        x = on_device(4)
        (WAITS | FREE)[name](x)
    assert len(device.waits) == (name in WAITS)


def test_values_are_those_of_a_cpu(device: PretendedDevice) -> None:
    x = on_device(4)
    assert x.device == torch.device("cuda:0")
    x[1:, ::2].mul_(2).add_(x[0, :3])
    expected = torch.arange(24.0).view(4, 6)
    expected[1:, ::2].mul_(2).add_(expected[0, :3])
    assert torch.equal(x.cpu(), expected)


def test_devices_do_not_mix(device: PretendedDevice) -> None:
    x = on_device(4)
    with pytest.raises(AssertionError, match="device and the host"):
        x + torch.ones(6)
    with pytest.raises(AssertionError, match="several devices"):
        x + x.to("cuda:1")
    with pytest.raises(TypeError):
        x.numpy()


def test_copies_take_their_time(device: PretendedDevice) -> None:
    x = on_device(4)
    host = torch.empty(4, 6, pin_memory=True)
    host.copy_(x, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    assert host.isnan().all()
    event.synchronize()
    assert host.tolist() == x.inside.tolist()  # type: ignore[attr-defined]
    event.synchronize()
    assert len(device.waits) == 1
    x.copy_(host, non_blocking=True)
    host.zero_()
    with pytest.raises(AssertionError, match="still to be copied"):
        torch.cuda.synchronize()


def test_streams_are_not_in_order(device: PretendedDevice) -> None:
    x, side = on_device(4), torch.cuda.Stream()
    with torch.cuda.stream(side), pytest.raises(AssertionError, match="stream"):
        x + 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    with pytest.raises(AssertionError, match="stream"):
        y + 1
    torch.cuda.current_stream().wait_stream(side)
    y + 1


def test_graphs(device: PretendedDevice) -> None:
    x = on_device(4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2).sum()
        for name, waits in WAITS.items():
            with pytest.raises(AssertionError, match=r"captured|repeat"):
                pytest.fail(f"{name}: {waits(x)}")
    x.fill_(1)
    graph.replay()
    assert y.item() == 48
    before = x + 1
    with torch.cuda.graph(again := torch.cuda.CUDAGraph()):
        y = before + 1
    again.replay()
    del before
    with pytest.raises(AssertionError, match="given back"):
        again.replay()
