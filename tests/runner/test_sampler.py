"""The batched sampler against per-row formulas, and its draws against their distribution."""

import math

import numpy as np
import pytest
import torch

from hybrid.runner.draws import uniform
from hybrid.runner.row_mirror import UNKNOWN, RowMirror
from hybrid.runner.sampler import GrammarMask, NonFiniteLogits, Sampled, accept_drafts, sample
from hybrid.runner.sampling_columns import token_bias
from hybrid.runner.truncation import truncate
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import NewRow
from tests.runner.plans import runner_sizes

VOCAB = 50
NOTHING = float("-inf")


class Rows:
    """A mirror with one request per row; `sample` draws for any of them, in any order."""

    def __init__(self, requests: list[tuple[SamplingParams, list[int], int]], vocab: int = VOCAB) -> None:
        """requests: parameters, known tokens, how many of these are prompt. The seed of row i is i + 1."""
        self.mirror = RowMirror(runner_sizes(num_rows=len(requests)))
        self.mirror.token_ids[:] = (7, UNKNOWN) * (self.mirror.token_ids.shape[1] // 2) + (7,)  # a former owner's
        for row, (params, tokens, num_prompt) in enumerate(requests):
            known = np.array(tokens, dtype=np.int32)
            self.mirror.start_row(NewRow(row, f"r{row}", known, num_prompt, 0, 0, 0))
            self.mirror.sampling.set(row, params, row + 1, token_bias(params, (1,), vocab))

    def sample(self, logits: torch.Tensor, rows: list[int], mask: GrammarMask | None = None) -> Sampled:
        chosen = np.array(rows)
        return sample(logits.clone(), chosen, self.mirror.num_tokens[chosen], self.mirror, mask).wait()


def logits_of(count: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return 3 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed))


def expected_distribution(logits: torch.Tensor, params: SamplingParams, tokens: list[int], prompt: int) -> torch.Tensor:
    """The probabilities of the next token of one row, one rule after the other."""
    out = logits.double().clone()
    for token, bias in (params.logit_bias or {}).items():
        out[token] += bias
    if len(tokens) - prompt < params.min_tokens:
        for token in {1, *params.stop_tokens}:
            out[token] = NOTHING
    for token in set(tokens):
        factor = params.repetition_penalty
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
    for token in set(tokens[prompt:]):
        out[token] -= params.frequency_penalty * tokens[prompt:].count(token) + params.presence_penalty
    if params.greedy:
        return torch.nn.functional.one_hot(out.argmax(), len(out)).double()
    probs = (out / params.temperature).softmax(-1)
    probs[probs < params.min_p * probs.max()] = 0
    if params.top_k:
        probs[probs < probs.sort(descending=True).values[params.top_k - 1]] = 0
    probs = probs / probs.sum()
    if params.top_p < 1:
        ordered, order = probs.sort(descending=True)
        before = ordered.cumsum(-1) - ordered
        probs[order[before >= params.top_p]] = 0
    return probs / probs.sum()


MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.3, top_p=0.6),
    SamplingParams(temperature=0.9, min_p=0.2),
    SamplingParams(temperature=2.0, top_k=9, top_p=0.8, min_p=0.05),
    SamplingParams(temperature=0.0, repetition_penalty=1.8),
    SamplingParams(temperature=0.8, presence_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, repetition_penalty=0.6, frequency_penalty=-1.0, top_k=4),
    SamplingParams(temperature=1.0, logit_bias={3: 5.0, 4: -100.0}),
    SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(5, 6)),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=1e-6),
]


def test_every_row_of_a_mixed_batch_follows_its_own_parameters() -> None:
    rng = np.random.default_rng(0)
    histories = [[int(t) for t in rng.integers(0, VOCAB, rng.integers(2, 30))] for _ in MIXED]
    rows = Rows([(params, tokens, len(tokens) // 2) for params, tokens in zip(MIXED, histories)])
    rows.mirror.sampling.min_tokens[10] = 100
    for seed in range(40):
        logits = logits_of(len(MIXED), seed)
        if seed % 2:
            logits[:, 1] = 30.0  # the end of the text is likely
        tokens = rows.sample(logits, list(range(len(MIXED)))).token_ids
        for row, params in enumerate(MIXED):
            history = histories[row]
            if row == 10:
                params = SamplingParams(temperature=0.0, min_tokens=15, max_tokens=99, stop_token_ids=(5, 6))
                history = history[: len(history) // 2]
            allowed = expected_distribution(logits[row], params, history, len(histories[row]) // 2)
            assert allowed[int(tokens[row])] > 0, (row, params)


@pytest.mark.parametrize("index", range(len(MIXED)))
def test_draws_follow_the_distribution(index: int) -> None:
    params, count = MIXED[index], 4000
    tokens = [int(t) for t in np.random.default_rng(index).integers(0, VOCAB, 12)]
    rows = Rows([(params, tokens, 6)] * count)
    logits = logits_of(1, index)
    drawn = rows.sample(logits.expand(count, -1), list(range(count))).token_ids
    expected = expected_distribution(logits[0], params, tokens, 6).numpy()
    seen = np.bincount(drawn, minlength=VOCAB) / count
    assert (seen[expected == 0] == 0).all()
    error = np.abs(seen - expected) / np.sqrt(np.maximum(expected * (1 - expected), 1e-4) / count)
    assert error.max() < 5


def test_a_token_depends_on_seed_position_and_logits_only() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9)
    rows = Rows([(params, list(range(2, 12)), 4)] * 6)
    logits = logits_of(6, seed=3)
    together = rows.sample(logits, [0, 1, 2, 3, 4, 5]).token_ids
    shuffled = rows.sample(logits[[4, 2, 0]], [4, 2, 0]).token_ids
    alone = [int(rows.sample(logits[i : i + 1], [i]).token_ids[0]) for i in range(6)]
    assert alone == together.tolist()
    assert shuffled.tolist() == [alone[4], alone[2], alone[0]]
    assert len(set(rows.sample(logits[:1].expand(6, -1), list(range(6))).token_ids.tolist())) > 1


def test_greedy_takes_the_first_of_equal_logits_with_and_without_the_fast_path() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, [9, 30]] = 4.0
    fast = Rows([(SamplingParams(temperature=0.0), [2], 1)] * 2)
    slow = Rows([(SamplingParams(temperature=0.0), [2], 1), (SamplingParams(temperature=1.0), [2], 1)])
    assert fast.sample(logits, [0, 1]).token_ids.tolist() == [9, 9]
    assert int(slow.sample(logits, [0, 1]).token_ids[0]) == 9


def test_uniform_numbers_are_uniform_and_independent() -> None:
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 100)
    positions = np.tile(np.arange(100), 200)
    draws = uniform(seeds, positions)
    assert draws.min() > 0
    assert draws.max() < 1
    counts = np.bincount((draws * 20).astype(int), minlength=20)
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square with 19 degrees of freedom, p < 0.001
    grid = draws.reshape(200, 100)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(draws)) == len(draws)


def test_log_probabilities_are_the_models_own() -> None:
    params = SamplingParams(temperature=0.5, top_k=2, presence_penalty=1.0, logprobs=4)
    only_chosen = SamplingParams(temperature=0.0, logprobs=0)
    rows = Rows([(SamplingParams(temperature=0.0), [2], 1), (params, [2, 3, 4], 1), (only_chosen, [2], 1)])
    logits = logits_of(3, seed=1)
    sampled = rows.sample(logits, [0, 1, 2])
    assert sampled.logprobs[0] is None
    own = logits.log_softmax(-1)
    for k, count in ((1, 4), (2, 0)):
        entry = sampled.logprobs[k]
        assert entry is not None
        token = int(sampled.token_ids[k])
        assert entry.token_id == token
        assert math.isclose(entry.logprob, float(own[k, token]), rel_tol=1e-5)
        assert entry.rank == 1 + int((own[k] > own[k, token]).sum())
        assert entry.top_token_ids.tolist() == own[k].argsort(descending=True)[:count].tolist()
        np.testing.assert_allclose(entry.top_logprobs, own[k].sort(descending=True).values[:count], rtol=1e-5)


def test_more_logprobs_than_the_vocabulary_has_are_cut() -> None:
    rows = Rows([(SamplingParams(temperature=0.0, logprobs=90), [2], 1)])
    entry = rows.sample(logits_of(1), [0]).logprobs[0]
    assert entry is not None
    assert len(entry.top_token_ids) == VOCAB


def test_a_grammar_mask_leaves_only_its_tokens() -> None:
    rows = Rows([(SamplingParams(temperature=t), [2], 1) for t in (0.0, 1.0, 0.0)])
    allowed = [{33}, {3, 40}]
    bits = np.zeros((2, 64), dtype=np.uint8)
    for k, kept in enumerate(allowed):
        bits[k, list(kept)] = 1
    bitmask = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    logits = logits_of(3)
    tokens = rows.sample(logits, [0, 1, 2], GrammarMask(np.array([0, 1]), bitmask)).token_ids
    assert int(tokens[0]) == 33
    assert int(tokens[1]) in allowed[1]
    assert int(tokens[2]) == int(logits[2].argmax())


def test_a_mask_that_allows_nothing_is_an_error() -> None:
    rows = Rows([(SamplingParams(temperature=0.0), [2], 1)])
    with pytest.raises(NonFiniteLogits, match="request r0"):
        rows.sample(logits_of(1), [0], GrammarMask(np.array([0]), np.zeros((1, 2), dtype=np.int32)))


TRUNCATED = SamplingParams(temperature=1.0, top_k=5, top_p=0.7, min_p=0.01)


@pytest.mark.parametrize("ops", ["torch", "triton"])
@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0), TRUNCATED, SamplingParams(logprobs=2)]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), NOTHING])
def test_logits_that_are_not_finite_are_an_error(
    params: SamplingParams, value: float, ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRID_OPS", ops)
    rows = Rows([(params, [2], 1)] * 2)
    logits = logits_of(2)
    logits[1, slice(None) if value == NOTHING else 4] = value
    with pytest.raises(NonFiniteLogits, match="request r1") as caught:
        rows.sample(logits, [0, 1])
    assert caught.value.request_ids == ("r1",)


def test_min_tokens_counts_output_only_and_ignore_eos_leaves_eos_alone() -> None:
    logits = torch.zeros(4, VOCAB)
    logits[:, 1], logits[:, 5], logits[:, 8] = 9.0, 8.0, 7.0
    two = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(5,))
    ignoring = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(5,), ignore_eos=True)
    known = [2] * 10
    rows = Rows([(two, known, 10), (two, known, 9), (two, known, 8), (ignoring, known, 10)])
    assert rows.sample(logits, [0, 1, 2, 3]).token_ids.tolist() == [8, 8, 1, 1]


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="logit_bias names token 50"):
        token_bias(SamplingParams(logit_bias={50: 1.0}), (), VOCAB)
    with pytest.raises(ValueError, match="stop_token_ids names token 77"):
        token_bias(SamplingParams(stop_token_ids=(77,)), (), VOCAB)
    with pytest.raises(ValueError, match="eos_token_ids names token 99"):
        token_bias(SamplingParams(), (99,), VOCAB)


def test_top_p_finds_its_threshold_in_a_large_flat_vocabulary() -> None:
    logits = 0.01 * torch.randn(3, 6000, generator=torch.Generator().manual_seed(0))
    kept = logits.clone()
    truncate(kept, torch.zeros(3, dtype=torch.int64), torch.tensor([0.5, 1.0, 0.9]), torch.zeros(3))
    probs = logits.softmax(-1)
    for row, top_p in enumerate((0.5, 1.0, 0.9)):
        inside = torch.isfinite(kept[row])
        mass = float(probs[row, inside].sum())
        assert mass >= top_p - 1e-4
        assert mass - float(probs[row, inside].min()) < top_p or top_p == 1.0


def test_equal_logits_are_kept_or_cut_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    truncate(logits, torch.tensor([2]), torch.ones(1), torch.zeros(1))
    assert torch.isfinite(logits).tolist() == [[True, True, True, False]]


def test_drafts_are_accepted_up_to_the_first_that_differs() -> None:
    # row 0: three drafts, the second wrong; row 1: none; row 2: two drafts, all right
    owner = np.array([0, 0, 0, 0, 1, 2, 2, 2])
    sampled = np.array([4, 5, 6, 7, 8, 9, 10, 11], dtype=np.int32)
    tokens, taken = accept_drafts(sampled, owner, np.array([4, 3, 6, 9, 10], dtype=np.int32), 3)
    assert [tokens[i, taken[i]].tolist() for i in range(3)] == [[4, 5], [8], [9, 10, 11]]
