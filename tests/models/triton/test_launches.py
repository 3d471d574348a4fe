"""What launches give depends neither on the order in which programs run nor on where memory lies: the same bits where
pools and the rows of activations, logits and tables are further apart than what int32 counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

from hybrid.models.context import AttentionCache, BlockTables, DecodeContext, StateCache
from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.triton import activation, experts, norm, rotation, sampling
from hybrid.models.ops.triton.attention import Tiling, TritonAttention
from hybrid.models.ops.triton.decode_attention import plan_decodes
from hybrid.models.ops.triton.device import interpreted, product_dtype
from hybrid.models.ops.triton.lora import TritonLora
from hybrid.models.ops.triton.recurrent import TritonRecurrent
from hybrid.models.ops.triton.recurrent_tables import RecurrentTables
from hybrid.models.ops.workspace import Workspace
from tests.models.triton.batches import SLOTS, Sizes, make, recurrent_rows
from tests.models.triton.sanitized import sanitized
from tests.models.triton.sanitizer import untouched
from tests.models.triton.test_compiled import kernels

pytestmark = pytest.mark.skipif(not interpreted(), reason="memory that is not there is the host's")

CPU = torch.device("cpu")
FAR = 1 << 31  # elements


@pytest.fixture(autouse=True)
def sanitize() -> None:
    """In the tests themselves."""


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Place:
    """Where tensors lie."""

    far: bool

    def pool(self, values: torch.Tensor) -> tuple[torch.Tensor, int]:
        """A pool whose last units are `values`, and the number of those before."""
        if not self.far:
            return values.clone(), 0
        before = FAR // values[0].numel() + 1
        whole = _untouched((before + len(values)) * values[0].numel(), values.dtype).view(-1, *values.shape[1:])
        whole[before:] = values
        return whole, before

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """`values`, of which the last row begins far from the first."""
        stride = FAR // (len(values) - 1) + 1 if self.far else values[0].numel() + 3
        inner = values[0].contiguous().stride()
        made = _untouched(len(values) * stride, values.dtype).as_strided(values.shape, (stride, *inner))
        return made.copy_(values)


def _untouched(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(untouched(size * dtype.itemsize, np.uint8)).view(dtype)


def attention(place: Place, computed: list[int], counts: list[int]) -> list[torch.Tensor]:
    """Of a batch whose tiles are split."""
    tiling = Tiling(block_m=16, block_n=16, min_split=16, num_warps=4, num_stages=1)
    batch = make(Sizes(4, 2, 20, 8), computed, counts, None, CPU, torch.bfloat16)
    kv, before = place.pool(batch.kv)
    tables = BlockTables(batch.tables.table + before, batch.tables.slot_mapping + 8 * before, 8)
    query, key_value = place.rows(batch.query), place.rows(batch.key_value)
    run = TritonAttention.plan(batch.context, tables, None, AttentionCache(kv), 4, Workspace(), (tiling, tiling))
    return [run(query, key_value, AttentionCache(kv), 0.3), kv[before:]]


def decode_step(place: Place, window: int | None) -> list[torch.Tensor]:
    """The plan that a graph holds, with a row of nobody's."""
    tiling = Tiling(block_m=16, block_n=16, min_split=16, num_warps=4, num_stages=1)
    batch = make(Sizes(4, 2, 20, 8), [40, 9], [1, 1], window, CPU, torch.float32)
    kv, before = place.pool(batch.kv)
    table = np.append(batch.tables.table, np.full_like(batch.tables.table[:1], len(batch.kv) - 1), axis=0) + before
    rows, positions = torch.tensor([1, 0, 2]), torch.cat((batch.context.positions.flip(0), torch.zeros(1).long()))
    far = place.rows(torch.from_numpy(table).int())
    context = DecodeContext(rows, positions, rows, far, None, rows, ())
    run = plan_decodes(context, far, window, AttentionCache(kv), 4, tiling)
    query, key_value = (place.rows(x[rows.clamp(max=1)]) for x in (batch.query, batch.key_value))
    return [run(query, key_value, AttentionCache(kv), 0.3)[:2], kv[before:]]


def recurrent(
    place: Place,
    lens: list[int],
    state: tuple[int, ...],
    inputs: Sequence[tuple[int, ...]],
    call: Callable[..., torch.Tensor],
    is_conv: bool,
) -> list[torch.Tensor]:
    """call(run, cache, *inputs) over `lens` rows; inputs: shapes of what each token brings."""
    states, before = place.pool(random(SLOTS, *state))
    plain = recurrent_rows(lens, CPU)
    rows = replace(plain, slots=plain.slots + before, snapshot_slots=plain.snapshot_slots + before)
    run = TritonRecurrent(RecurrentTables.of(rows, (16, 32)), None)
    nothing = torch.zeros(0)
    cache = StateCache(states, nothing) if is_conv else StateCache(nothing, states)
    tensors = [place.rows(random(sum(lens), *shape, seed=seed)) for seed, shape in enumerate(inputs)]
    return [call(run, cache, *tensors), states[before:]]


RECURRENT: dict[str, tuple[Callable[..., torch.Tensor], bool, Sequence[tuple[int, ...]], int]] = {
    "conv": (lambda run, cache, x: run.conv(x, torch.ones(4, 37), None, cache), True, [(3, 37), (37,)], 128),
    "scan": (
        lambda run, cache, x, dt, b, c: run.scan(x, dt.abs(), -torch.ones(4), b, c, cache),
        False,
        [(4, 10, 7), (4, 10), (4,), (2, 7), (2, 7)],
        384,
    ),
    "selective scan": (
        lambda run, cache, x, dt, b, c: run.selective_scan(x, dt.abs(), -torch.ones(2, 90), b, c, cache),
        False,
        [(2, 90), (90,), (90,), (2,), (2,)],
        256,
    ),
    "gated scan": (lambda run, cache, x, g: run.gated_scan(x, -g.abs(), cache), False, [(37,), (37,), (37,)], 128),
    "delta rule": (
        lambda run, cache, q, k, v, g, beta: run.delta_rule(q, k / 9, v, -g.abs(), beta, cache),
        False,
        [(2, 5, 7), (1, 5), (1, 5), (2, 7), (2,), (2,)],
        128,
    ),
}


def routed_experts(place: Place) -> list[torch.Tensor]:
    """Three blocks of choices, whose experts are the last there are."""
    weight, before = place.pool(random(3, 2 * 24, 20))
    bias, _ = place.pool(random(3, 2 * 24))
    down, behind = place.pool(random(3, 20, 24))
    x, order = place.rows(random(40, 20)), torch.from_numpy(np.random.default_rng(0).permutation(40)).int()
    options = {"BLOCK": 16, "OUT": 16, "IN": 16, "PRODUCT": product_dtype(torch.float32)}
    sizes = {"SIZE": 20, "INNER": 24, "BIAS": False}
    inner, given, out = torch.zeros(40, 24), torch.zeros(40, 20), torch.zeros(40, 20)
    blocks = torch.tensor([[before, 0, 9], [before + 1, 9, 16], [before + 2, 25, 15]], dtype=torch.int32)
    form = {"TOP_K": 1, "STEP": 1, "UP": 24, "KIND": "silu"}
    experts.into_experts[(2, 3)](x, weight, bias, inner, order, blocks, x.stride(0), **sizes, **form, **options)
    blocks[:, 0] += behind - before
    experts.out_of_experts[(2, 3)](inner, down, down, random(40), given, order, blocks, **sizes, **options)
    experts.sum_choices[(40, 2)](given, out, TOP_K=1, SIZE=20, BLOCK=16)
    return [inner, out]


def routing(place: Place) -> list[torch.Tensor]:
    del place
    chosen = torch.from_numpy(np.random.default_rng(0).integers(0, 7, 50))
    order, blocks = torch.full((50,), -1, dtype=torch.int32), torch.full((50 // 16 + 7, 3), -1, dtype=torch.int32)
    experts.route[(7,)](chosen, order, blocks, 50, EXPERTS=7, BLOCK=16, TILE=16)
    return [order, blocks]


def lora(place: Place, table: bool) -> list[torch.Tensor]:
    site = LoraSite("site", 300, 40, table=table)
    site.allocate(3, torch.float32, CPU)
    site.write(torch.tensor([2, 0]), random(11, 300), random(40, 11, seed=1))
    site.write(torch.tensor([1]), random(5, 300, seed=2), random(40, 5, seed=3))
    (site.a, first), (site.b, second) = place.pool(site.a), place.pool(site.b)
    # units of both are numbered alike
    before = max(first, second)
    site.a, site.b = (_later(pool, before - units) for pool, units in ((site.a, first), (site.b, second)))
    site.live = torch.ones(len(site.a), dtype=torch.bool)
    run = TritonLora.plan([(np.arange(4), np.array([2, 0]) + before), (np.arange(4, 9), np.array([1]) + before)], CPU)
    out = place.rows(random(9, 40, seed=4))
    if table:
        run.add_rows(site, torch.arange(9) * 33, out)
    else:
        run.add(site, place.rows(random(9, 300, seed=5)), out)
    return [out]


def _later(pool: torch.Tensor, units: int) -> torch.Tensor:
    """The pool, whose last three units come so many later."""
    if not units:
        return pool
    whole = _untouched((len(pool) + units) * pool[0].numel(), pool.dtype).view(-1, *pool.shape[1:])
    whole[-3:] = pool[-3:]
    return whole


def norms(place: Place) -> list[torch.Tensor]:
    x, heads, weight = place.rows(random(5, 33)), place.rows(random(5, 4, 12)), random(33)
    found = [norm.rms_norm(x, weight, 1e-3, 1), norm.rms_norm(x, weight, 1e-3, 3), norm.rms_norm(heads, None, 1e-3, 1)]
    found += norm.add_rms_norm(x, random(5, 33, seed=1), 0.5, weight, 1e-3)
    norm.rms_norm_(heads[:, 1:3], weight[:12], 1e-3)
    return [*found, heads]


def rotations(place: Place) -> list[torch.Tensor]:
    heads, angles = place.rows(random(5, 4, 12)), random(5, 5)
    for interleaved in (False, True):
        rotation.rotate(heads, 3, angles.cos(), angles.sin(), interleaved)
    return [heads]


def truncations(place: Place) -> list[torch.Tensor]:
    logits = place.rows(random(3, 1100))
    wanted = torch.tensor([1.0, 50.0, 1100.0]).double()
    return [sampling.threshold(logits, wanted, False), sampling.threshold(logits, wanted / 2000, True)]


Call = Callable[[Place], list[torch.Tensor]]
CALLS: dict[str, tuple[Call, int]] = {  # and the most that an int32 need hold in it
    "attention of a batch": (lambda place: attention(place, [90, 3, 40], [1, 1, 7]), 640),
    "attention of a decode step": (lambda place: decode_step(place, None), 640),
    "attention of a decode step, window": (lambda place: decode_step(place, 11), 640),
    **{
        f"{name}, {mix}": (
            partial(recurrent, lens=lens, state=shapes[0], inputs=shapes[1:], call=call, is_conv=is_conv),
            most,
        )
        for name, (call, is_conv, shapes, most) in RECURRENT.items()
        for mix, lens in (("decodes", [1] * 16), ("short chunks", [1, 3, 16]), ("long chunks", [3, 17, 70]))
    },
    "experts": (routed_experts, 64),
    "routing": (routing, 64),
    "lora": (lambda place: lora(place, False), 384),
    "lora, table": (lambda place: lora(place, True), 64),
    "norms": (norms, 64),
    "rotation": (rotations, 64),
    "activation": (lambda place: [activation.activate_and_multiply("silu", place.rows(random(5, 40)))], 64),
    "truncation": (truncations, 2**31 - 1),
}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[torch.Tensor]]:
    """Programs in order, rows side by side. Every kernel of ours is launched."""
    with sanitized("ascending") as sanitizer:
        results = {name: call(Place(False)) for name, (call, _) in CALLS.items()}
    assert sanitizer.kernels == kernels()
    return results


def check(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for mine, wanted in zip(found, expected, strict=True):
        assert wanted.numel()
        torch.testing.assert_close(mine, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CALLS)
def test_in_any_order_with_little_in_int32(name: str, expected: dict[str, list[torch.Tensor]]) -> None:
    call, most = CALLS[name]
    with sanitized("descending", most):
        check(call(Place(False)), expected[name])


@pytest.mark.parametrize("name", CALLS)
def test_wherever_memory_lies(name: str, expected: dict[str, list[torch.Tensor]]) -> None:
    with sanitized("shuffled"):
        check(CALLS[name][0](Place(True)), expected[name])
