"""The gated delta rule over mixed batches is the recurrence, token by token, at every position."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hybrid.models.context import DeferredStates, ForwardContext, Snapshots, StateCache
from hybrid.models.ops.recurrent import TorchRecurrent
from tests.models.forward import context_for

GROUPS, HEADS, KEYS, VALUES = 3, 6, 5, 7
Inputs = tuple[torch.Tensor, ...]


def inputs_for(tokens: int, beta_up_to: float = 2.0, seed: int = 0) -> Inputs:
    """q, k, v, log decay and beta of one sequence."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(tokens, GROUPS, KEYS, generator=generator) for _ in range(2))
    v = torch.randn(tokens, HEADS, VALUES, generator=generator)
    g = -(torch.rand(tokens, HEADS, generator=generator) ** 4)  # mostly slow, some fast
    beta = beta_up_to * torch.rand(tokens, HEADS, generator=generator)
    return q, torch.nn.functional.normalize(k, dim=-1), v, g, beta


def token_by_token(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(y [T, H, V], states [T + 1, H, K, V] before the first and after every token), in float64, by the definition."""
    q, k, v, g, beta = (values.double() for values in inputs)
    q, k = (values.repeat_interleave(HEADS // GROUPS, dim=1) for values in (q, k))
    state = torch.zeros(HEADS, KEYS, VALUES, dtype=torch.float64)
    outputs, states = [], [state]
    for t in range(len(v)):
        state = state * g[t].exp()[:, None, None]
        held = torch.einsum("hk,hkv->hv", k[t], state)
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - held))
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state))
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def cache_of(num_slots: int) -> StateCache:
    """Slots as former owners may have left them."""
    conv = torch.zeros(num_slots, 3, 1)
    return StateCache(conv, torch.full((num_slots, HEADS, KEYS, VALUES), float("nan")))


def batch(
    sequences: list[Inputs], computed: list[int], counts: list[int], cache: StateCache
) -> tuple[ForwardContext, Inputs]:
    """The context and the flat inputs of tokens computed[i] .. computed[i] + counts[i] - 1 of every sequence."""
    rows = [[0] * len(sequence[0]) for sequence in sequences]
    context = context_for(rows, computed, counts, (cache,))
    parts = [
        [values[begin : begin + count] for values in sequence]
        for sequence, begin, count in zip(sequences, computed, counts)
    ]
    return context, tuple(torch.cat(values) for values in zip(*parts))


def run(context: ForwardContext, flat: Inputs, cache: StateCache) -> torch.Tensor:
    q, k, v, g, beta = flat
    return TorchRecurrent.plan(context, cache).delta_rule(q, k, v, g, beta, cache)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.float(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "schedule", [[[1, 40, 150]], [[1, 1, 65], [1, 16, 2], [1, 17, 64], [1, 7, 20]], [[1, 1, 1]] * 30]
)
def test_chunks_and_decodes_are_the_recurrence(schedule: list[list[int]]) -> None:
    counts = np.sum(schedule, axis=0).tolist()
    sequences = [inputs_for(count, seed=seed) for seed, count in enumerate(counts)]
    expected = [token_by_token(sequence) for sequence in sequences]
    cache = cache_of(3)
    computed = [0] * 3
    for step in schedule:
        context, flat = batch(sequences, computed, step, cache)
        y = run(context, flat, cache)
        for row, part in enumerate(y.split(step)):
            close(part, expected[row][0][computed[row] : computed[row] + step[row]])
            computed[row] += step[row]
            close(cache.ssm[row], expected[row][1][computed[row]])


@pytest.mark.parametrize("count", [9, 130])
def test_snapshots_at_every_offset(count: int) -> None:
    sequences = [inputs_for(1, seed=1), inputs_for(4 + count)]
    _, states = token_by_token(sequences[1])
    cache = cache_of(3 + count)
    context, flat = batch(sequences, [0, 0], [1, 4], cache)
    run(context, flat, cache)
    # the chunk of row 1 alone, a snapshot after each of its tokens
    lengths = np.arange(1, count + 1)
    context, flat = batch([sequences[1]], [4], [count], cache)
    snapshots = Snapshots(np.zeros_like(lengths), lengths, 2 + lengths)
    context = replace(context, snapshots=snapshots, state_slots=np.array([1]))
    run(context, flat, cache)
    close(cache.ssm[3:], states[5:])
    close(cache.ssm[1], states[-1])


def test_deferred_rows_advance_by_what_counted() -> None:
    """Rows leave their states alone until it is known how many of their tokens count; one token, some, all."""
    sequences = [inputs_for(count, seed=count) for count in (6, 9, 8, 25)]
    states = [token_by_token(sequence)[1] for sequence in sequences]
    cache = cache_of(4)
    context, flat = batch(sequences, [0] * 4, [5, 4, 3, 5], cache)
    run(context, flat, cache)
    begin = cache.ssm.clone()
    deferred = DeferredStates(np.array([1, 2, 3]))
    context, flat = batch(sequences, [5, 4, 3, 5], [1, 5, 5, 20], cache)
    context = replace(context, deferred=deferred)
    run(context, flat, cache)
    torch.testing.assert_close(cache.ssm[1:], begin[1:], rtol=0, atol=0)
    deferred.commit(np.array([3, 1, 20]))
    for row, length in enumerate((6, 7, 4, 25)):
        close(cache.ssm[row], states[row][length])
