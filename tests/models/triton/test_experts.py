"""Routed experts by Triton's kernels give what the experts give one after the other, and read no others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.models.blueprint.experts import MoE, Router
from hybrid.models.layers.experts import Experts
from hybrid.models.ops.decode_lora import DecodeLora, Lora
from hybrid.models.ops.experts import ExpertActivation, ExpertStacks, run
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.weights import Weights

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Form:
    activation: ExpertActivation
    gated: bool = True
    biases: bool = False


FORMS = (
    Form("silu"),
    Form("gelu_tanh"),
    Form("gelu", biases=True),
    Form("relu2", gated=False),
    Form("gpt_oss", True, True),
)


def some(experts: int, tokens: int, top_k: int) -> torch.Tensor:
    """Different experts for each token."""
    rng = np.random.default_rng(top_k)
    return torch.from_numpy(np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]))


def counts(*tokens: int) -> torch.Tensor:
    """One expert per token, in an order that is not theirs."""
    experts = np.repeat(np.arange(len(tokens)), tokens)
    return torch.from_numpy(np.random.default_rng(0).permutation(experts)[:, None])


ROUTINGS = {  # experts there are, and those that were chosen
    "no token": (3, torch.zeros((0, 2), dtype=torch.int64)),
    "one token": (9, torch.tensor([[7, 2]])),
    "all tokens to the first": (5, torch.zeros((20, 1), dtype=torch.int64)),
    "all tokens to the last": (5, torch.full((33, 1), 4)),
    "blocks, less one, and one": (7, counts(16, 0, 15, 17, 0, 32)),
    "everything": (4, some(4, 3, 4)),
    "one expert": (1, torch.zeros((3, 1), dtype=torch.int64)),
    "blocks of 128": (3, counts(3, 0, 260)),
    **{f"top {k}": (11, some(11, 6, k)) for k in range(1, 9)},
}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def stacks_of(
    routing: tuple[int, torch.Tensor], sizes: tuple[int, int], form: Form, dtype: torch.dtype, device: torch.device
) -> ExpertStacks:
    """NaN in all experts that nobody chose."""
    experts, chosen = routing
    width, inner = sizes
    rows = 2 * inner if form.gated else inner
    idle = [index for index in range(experts) if index not in chosen]

    def stack(seed: int, scale: float, *shape: int) -> torch.Tensor:
        values = scale * random(experts, *shape, seed=seed)
        values[idle] = NAN
        return values.to(device, dtype)

    return ExpertStacks(
        inward=stack(1, width**-0.5, rows, width),
        down=stack(2, inner**-0.5, width, inner),
        inward_bias=stack(3, 1.0, rows) if form.biases else None,
        down_bias=stack(4, 1.0, width) if form.biases else None,
        activation=form.activation,
        gated=form.gated,
    )


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """What a computation gives by Triton's kernels, and in torch."""

    def compute(make: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        results = []
        for name in ("triton", "torch"):
            monkeypatch.setenv("HYBRID_OPS", name)
            results.append(make())
        return results[0], results[1]

    return compute


Both = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]


def check(
    both: Both,
    device: torch.device,
    routing: tuple[int, torch.Tensor],
    sizes: tuple[int, int],
    form: Form,
    dtype: torch.dtype,
) -> None:
    chosen = routing[1].to(device)
    stacks = stacks_of(routing, sizes, form, dtype, device)
    x = 6 * random(len(chosen), sizes[0] + 3, dtype=dtype, seed=5).to(device)[:, 3:]  # a part of something wider
    shares = random(*chosen.shape, seed=6).to(device)
    ours, theirs = both(lambda: run(x, chosen, shares, stacks))
    assert ours.dtype == torch.float32
    assert not theirs.isnan().any()
    largest = float(theirs.abs().amax()) if len(chosen) else 1.0
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * largest)


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
def test_routings(routing: tuple[int, torch.Tensor], both: Both, device: torch.device) -> None:
    check(both, device, routing, (20, 12), FORMS[0], torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 1), (16, 64), (70, 65), (150, 33)])
@pytest.mark.parametrize("form", FORMS, ids=[form.activation for form in FORMS])
def test_forms(form: Form, sizes: tuple[int, int], dtype: torch.dtype, both: Both, device: torch.device) -> None:
    check(both, device, ROUTINGS["top 3"], sizes, form, dtype)


def test_more_choices_than_are_ordered_at_once(
    both: Both, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid.models.ops.triton.experts.TILES", (16, 16))
    check(both, device, (7, some(6, 19, 5)), (20, 12), FORMS[0], torch.float32)


@pytest.mark.parametrize("form", FORMS, ids=[form.activation for form in FORMS])
def test_what_is_not_finite_stays_with_its_token(
    form: Form, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRID_OPS", "triton")
    chosen = ROUTINGS["top 2"][1].to(device)
    stacks = stacks_of(ROUTINGS["top 2"], (20, 12), form, torch.float32, device)
    x, shares = random(len(chosen), 20, seed=5).to(device), torch.ones(chosen.shape, device=device)
    clean = run(x, chosen, shares, stacks)
    x[2] = NAN
    out = run(x, chosen, shares, stacks)
    assert out[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(out[others], clean[others])


PARTS: dict[str, dict[str, Any]] = {
    "listed": {"layout": "list"},
    "listed, no gate": {"layout": "list", "gated": False, "activation": "relu2"},
    "stacked": {"layout": "stacked"},
    "transposed": {"layout": "transposed", "activation": "gelu_tanh"},
    "gpt_oss": {"layout": "gpt_oss"},
}
UNITS = ((), (2,), (0, 1), (5, 3))  # rank units of adapters; the third one changes other modules than experts


def layer(
    part: MoE, device: torch.device, dtype: torch.dtype = torch.float32, without: tuple[str, ...] = ()
) -> Experts:
    """without: names of sites that adapters may not change."""
    shapes = sorted(part.tensors().items())
    tensors = {name: random(*shape, seed=seed) / 4 for seed, (name, shape) in enumerate(shapes)}
    weights = Weights(tensors, dtype, device)
    experts = Experts(part, weights)
    for seed, (site, (name, (_, outputs, inputs))) in enumerate(
        zip(weights.sites, part.lora_targets().items(), strict=True)
    ):
        assert site.name == name
        if name in without:
            continue
        site.allocate(6, dtype, device)
        site.a.fill_(NAN)
        site.b.fill_(NAN)
        for units, rank in ((UNITS[1], 7), (UNITS[3], 12)):
            a, b = random(5, rank, inputs, seed=seed) / 4, random(5, outputs, rank, seed=seed + 9) / 4
            site.write(torch.tensor(units, device=device), a, b)
    return experts


def moe(fields: dict[str, Any]) -> MoE:
    return MoE("moe", 20, 12, 5, 2, Router("moe.gate", "softmax"), experts="moe.experts", **fields)


def of_tokens(adapters: Sequence[int]) -> LoraBatch:
    table = np.full((len(UNITS), 2), -1)
    for row, units in enumerate(UNITS):
        table[row, : len(units)] = units
    return LoraBatch(table[list(adapters)])


def computed(fields: dict[str, Any], adapters: tuple[int, ...] | None, device: torch.device) -> torch.Tensor:
    """Of four tokens."""
    x, chosen, shares = random(4, 20).to(device), some(5, 4, 2).to(device), random(4, 2, seed=1).to(device)
    return layer(moe(fields), device)(x, chosen, shares, None if adapters is None else of_tokens(adapters))


@pytest.mark.parametrize("adapters", [None, (2, 0, 2, 0), (1, 2, 0, 3)])
@pytest.mark.parametrize("fields", PARTS.values(), ids=PARTS)
def test_layers(fields: dict[str, Any], adapters: tuple[int, ...] | None, device: torch.device, both: Both) -> None:
    """However the weights lie, and whatever adapters change."""
    ours, theirs = both(lambda: computed(fields, adapters, device))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    changed = (ours - computed(fields, None, device)).abs().amax(dim=1) > 1e-3
    assert changed.tolist() == [adapter in (1, 3) for adapter in adapters or (0, 0, 0, 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("without", [(), ("moe.experts.gate_up_proj",), ("moe.experts.down_proj",)])
def test_many_tokens_of_several_adapters(
    without: tuple[str, ...], dtype: torch.dtype, device: torch.device, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them in one block of choices; also in the tables of a decode step, with rows of nobody's behind."""
    count, padded = 50, 56
    adapters = np.random.default_rng(0).integers(0, len(UNITS), count).tolist()
    x, shares = random(padded, 20, dtype=dtype).to(device), random(padded, 2, seed=1).to(device)
    x[count:] = NAN
    chosen, steps = some(5, padded, 2).to(device), DecodeLora(padded, 6, 2, device)

    def of(lora: Lora | None, rows: slice) -> torch.Tensor:
        return layer(moe(PARTS["stacked"]), device, dtype, without)(x[rows], chosen[rows], shares[rows], lora)

    ours, theirs = both(lambda: of(of_tokens(adapters), slice(count)))
    scale = float(theirs.abs().amax())
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)
    monkeypatch.setenv("HYBRID_OPS", "triton")
    plain = of(None, slice(count))
    changed = ((ours - plain).abs().amax(dim=1) > 1e-3).tolist()
    assert changed == [adapter in (1, 3) for adapter in adapters]
    steps.fill(of_tokens(adapters))
    torch.testing.assert_close(of(steps, slice(None))[:count], ours, rtol=1e-5, atol=1e-5)
    steps.fill(of_tokens([2]))
    torch.testing.assert_close(of(steps, slice(None))[:count], plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("adapters", [None, (2, 0, 2, 0), (1, 0, 2, 3)])
def test_layers_take_experts_together(
    adapters: tuple[int, ...] | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRID_OPS", "triton")
    for module in ("layers", "ops"):
        monkeypatch.setattr(f"hybrid.models.{module}.experts.one_by_one", None)
    out = computed(PARTS["listed"], adapters, device)
    assert out.isfinite().all() and out.any()
