"""Who computes on a device: by default, and as HYBRID_OPS says."""

import pytest
import torch

from hybrid.models.ops import choice, cpu
from hybrid.models.ops.choice import choose
from hybrid.models.ops.dispatch import select_ops
from hybrid.models.ops.torch_ops import TorchOps
from hybrid.models.ops.triton.ops import TritonOps

CPU, CUDA, META = torch.device("cpu"), torch.device("cuda"), torch.device("meta")


def test_the_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRID_OPS", raising=False)
    assert (choose(CPU), choose(CUDA), choose(META)) == ("cpu", "triton", "torch")
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    assert choose(CPU) == "torch"


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "torch"), ((8, 0), "triton"), ((10, 0), "triton")])
def test_old_gpus_have_no_kernels(capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRID_OPS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    choice._is_recent.cache_clear()
    try:
        assert choose(CUDA) == name
    finally:
        choice._is_recent.cache_clear()


@pytest.mark.parametrize(("name", "ops"), [("torch", TorchOps), ("triton", TritonOps), ("cpu", cpu.CpuOps)])
def test_the_environment_decides(name: str, ops: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", name)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose(CPU) == name
    assert type(select_ops(CPU)) is ops


@pytest.mark.parametrize(
    ("name", "device", "complaint"),
    [
        ("cuda", CPU, "HYBRID_OPS='cuda': expected torch, triton, cpu or packages"),
        ("cpu", CUDA, "HYBRID_OPS='cpu' needs a CPU and numba; the device is 'cuda'"),
        ("triton", CPU, "HYBRID_OPS='triton' on 'cpu': outside CUDA, Triton's kernels run in its interpreter only"),
    ],
)
def test_what_cannot_be(name: str, device: torch.device, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", name)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match=complaint):
        select_ops(device)
