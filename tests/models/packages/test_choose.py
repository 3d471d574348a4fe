"""Which functions of packages a model gets: by contests at its own sizes, by HYBRID_OPS, and none without CUDA."""

import logging
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from hybrid.models import decoder
from hybrid.models.blueprint.parts import Norm
from hybrid.models.blueprint.recurrent import Mamba2, ShortConv
from hybrid.models.ops import choice
from hybrid.models.ops.dispatch import Ops, select_ops
from hybrid.models.ops.packages.choose import Batches, choose_kernels
from hybrid.models.ops.packages.shapes import ConvShape, RecurrentShapes, SsdShape
from hybrid.models.ops.triton.recurrent_kernels import OURS, RecurrentKernels
from hybrid.pools.specs import MambaSpec
from hybrid.runner.loading import load
from tests.models.families.oracle import Oracle, all_cases
from tests.models.packages import stand_ins

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BATCHES = Batches(rows=3, alone=19, together=(2, 17))
SHAPES = RecurrentShapes((ConvShape(16, 4),), (SsdShape(4, 10, 2, 7),), torch.float32)
NAMES = tuple(field.name for field in fields(OURS))


def chosen(shapes: RecurrentShapes = SHAPES, always: bool = True) -> set[str]:
    """Names of the kernels that are not ours."""
    kernels: RecurrentKernels = choose_kernels(CPU, shapes, lambda run: 1.0, always, BATCHES)
    return {name for name in NAMES if getattr(kernels, name) is not getattr(OURS, name)}


def test_all_that_are_right(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    stand_ins.install(monkeypatch)
    caplog.set_level(logging.INFO)
    assert chosen() == set(NAMES)
    assert chosen(always=False) == set()  # not faster
    assert [line.partition(";")[0] for line in caplog.messages[:4]] == [
        "convolution of single tokens (16 channels, kernel 4, float32): causal_conv1d",
        "convolution of chunks (16 channels, kernel 4, float32): causal_conv1d",
        "Mamba-2 scan of single tokens (4 heads of 10, 2 groups, states of 7, float32): mamba_ssm",
        "Mamba-2 scan of chunks (4 heads of 10, 2 groups, states of 7, float32): mamba_ssm",
    ]
    assert all(": ours; " in line for line in caplog.messages[4:])


def without_states(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The same, but the states, its argument `at`, stay as they were."""

    def run(*arguments: Any, **named: Any) -> Any:
        given = list(arguments)
        given[at] = given[at].clone()
        return function(*given, **named)

    return run


def ignoring(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same without the argument `name`."""

    def run(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **{key: None if key == name else value for key, value in named.items()})

    return run


@pytest.mark.parametrize(
    ("name", "function", "lost"),
    [
        ("causal_conv1d_update", without_states(stand_ins.causal_conv1d_update, 1), "conv_decodes"),
        ("causal_conv1d_fn", ignoring(stand_ins.causal_conv1d_fn, "initial_states"), "conv_chunks"),
        ("causal_conv1d_fn", ignoring(stand_ins.causal_conv1d_fn, "seq_idx"), "conv_chunks"),
        ("selective_state_update", without_states(stand_ins.selective_state_update, 0), "ssd_decodes"),
        ("mamba_chunk_scan_combined", ignoring(stand_ins.mamba_chunk_scan_combined, "initial_states"), "ssd_chunks"),
    ],
)
def test_not_those_that_are_wrong(
    name: str, function: Callable[..., Any], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.install(monkeypatch, **{name: function})
    assert set(NAMES) - chosen() == {lost}


def test_one_size_of_several_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package knows kernels of 4, and channels in eights."""
    stand_ins.install(monkeypatch)
    assert chosen(RecurrentShapes((ConvShape(16, 5), ConvShape(16, 4)), (), torch.float32)) == set()
    assert chosen(RecurrentShapes((ConvShape(16, 4), ConvShape(12, 4)), (), torch.float32)) == {"conv_decodes"}


def test_packages_that_are_not_there() -> None:
    assert chosen() == set()


def test_shapes_of_a_model() -> None:
    mamba = [Mamba2(f"layers.{i}", 32, 4, 10, 7, 2, conv_kernel=4, norm=Norm("norm", 40, 1e-5)) for i in range(2)]
    shapes = RecurrentShapes.of([*mamba, ShortConv("conv", 32, 3)], torch.bfloat16)
    assert shapes == RecurrentShapes((ConvShape(68, 4), ConvShape(32, 3)), (SsdShape(4, 10, 2, 7),), torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "device", "when"),
    [
        ("", CUDA, "faster"),
        ("packages", CUDA, "always"),
        ("triton", CUDA, "never"),
        ("torch", CUDA, "never"),
        ("", CPU, "never"),
    ],
)
def test_the_environment_decides(name: str, device: torch.device, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch)
    monkeypatch.setattr(choice, "_is_installed", lambda package: True)
    monkeypatch.setenv("HYBRID_OPS", name)
    assert choice.packages_take_part(device) == when
    assert choice.choose(CUDA) == ("torch" if name == "torch" else "triton")


def test_packages_are_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_OPS", "packages")
    with pytest.raises(ValueError, match="HYBRID_OPS='packages' needs a CUDA device; the device is 'cpu'"):
        choice.choose(CPU)
    monkeypatch.setattr(choice, "_is_installed", lambda package: package == "triton")
    with pytest.raises(ValueError, match="HYBRID_OPS='packages': neither mamba_ssm nor causal_conv1d is installed"):
        choice.choose(CUDA)


@pytest.mark.parametrize("name", ["", "triton", "torch"])
def test_without_cuda_nothing_is_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even looked for: a finder that is asked for them fails."""

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            assert name.partition(".")[0] not in ("mamba_ssm", "causal_conv1d")

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.setenv("HYBRID_OPS", name)
    select_ops(CPU, SHAPES)


@pytest.mark.parametrize("case", ["bamba: two of four attend", "zamba2: two blocks"])
def test_a_decoder_says_its_own_sizes(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told: list[RecurrentShapes] = []

    def select(device: torch.device, shapes: RecurrentShapes) -> Ops:
        told.append(shapes)
        return select_ops(device)

    monkeypatch.setattr(decoder, "select_ops", select)
    oracle = Oracle(all_cases()[case], tmp_path_factory.mktemp("checkpoint"))
    model = load(oracle.folder, torch.float32).decoder
    states = [spec for layer in model.spec.layers for spec in layer if isinstance(spec, MambaSpec)]
    [shapes] = told
    assert {(conv.channels, conv.kernel - 1) for conv in shapes.convs} == {spec.conv_shape for spec in states}
    assert {(ssd.heads, ssd.channels, ssd.size) for ssd in shapes.ssds} == {spec.ssm_shape for spec in states}
