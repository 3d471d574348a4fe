"""Sampler: logits -> tokens, for all sampling rows at once.

Order as in vLLM: grammar mask, (raw log-probabilities), logit bias and min_tokens, penalties, greedy choice or
temperature, min-p, top-k, top-p, draw. A draw is the inverse of the cumulative distribution in vocabulary order at a
uniform number that depends on seed and position only. Nothing waits for the device before `Sampling.wait`. Knows the
row mirror; not plans, not the model.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.models.ops.transfer import Download, upload
from hybrid.scheduler.plan import Bools, Ints, TokenIds

from .draws import uniform
from .penalties import apply_bitmask, apply_penalties, apply_token_bias
from .row_mirror import RowMirror
from .truncation import truncate

NO_TOKEN = -1  # of a row whose logits are not finite


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's own distribution (before bias, penalties and temperature).

    `rank` counts from 1 and is 1 + the number of more likely tokens; `top_*` are the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top_token_ids: TokenIds  # [n]
    top_logprobs: NDArray[np.float32]  # [n]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Token k and, where its row asked, its log-probabilities belong to logit row k."""

    token_ids: TokenIds  # [num_logits]
    logprobs: tuple[TokenLogprobs | None, ...]  # [num_logits], or () when no row asked


@dataclass(frozen=True, slots=True)
class GrammarMask:
    """Allowed tokens of some logit rows: token t is bit t % 32 of word t // 32 (the layout of xgrammar)."""

    logit_rows: Ints  # [n] index into the logit rows of the step
    bitmask: NDArray[np.int32]  # [n, ceil(vocab_size / 32)]


class NonFiniteLogits(FloatingPointError):
    """The logits of these requests hold NaN or +inf, or leave no token: the step has no result, and they are why."""

    def __init__(self, request_ids: tuple[str, ...]) -> None:
        super().__init__(f"logits are not finite for request{'s' * (len(request_ids) > 1)} {', '.join(request_ids)}")
        self.request_ids = request_ids


class Sampling:
    """Sampled `tokens` on the device, [num_logits] int64, NO_TOKEN where logits are not finite; they and what is to be
    reported of them are on their way to the host."""

    def __init__(self, tokens: torch.Tensor, rows: Ints, mirror: RowMirror, report: "_Report | None" = None) -> None:
        self.tokens = tokens
        self._download = Download(tokens)
        self._rows = rows
        self._request_ids = mirror.request_ids[rows]
        self._report = report

    def wait(self, void: Collection[int] = ()) -> Sampled:
        """The tokens on the host: here a step waits for the device. Raises NonFiniteLogits for rows with NO_TOKEN; the
        `void` ones, whose tokens count for nobody, get token 0."""
        token_ids = self._download.wait().astype(np.int32)
        missing = token_ids == NO_TOKEN
        if missing.any():
            failed = missing & ~np.isin(self._rows, list(void))
            if failed.any():
                raise NonFiniteLogits(tuple(dict.fromkeys(self._request_ids[failed].tolist())))
            token_ids[missing] = 0
        return Sampled(token_ids, () if self._report is None else self._report.entries(token_ids))


class Chunks:
    """Rows that do not sample. One that is not finite has spoilt keys and values of its chunk, also in front of the
    token that did it (what attention and scans mask, they multiply with 0), and others may share them."""

    def __init__(self, hidden: torch.Tensor, rows: Ints, mirror: RowMirror) -> None:
        """hidden [n, hidden_size]: of the last token of each row."""
        self._finite = Download(torch.isfinite(hidden).all(dim=-1))
        self._rows = rows
        self._request_ids = mirror.request_ids[rows]

    def wait(self, void: Collection[int]) -> None:
        """Waits for the device. Raises NonFiniteLogits for rows that are not `void`."""
        failed = ~self._finite.wait() & ~np.isin(self._rows, list(void))
        if failed.any():
            raise NonFiniteLogits(tuple(self._request_ids[failed].tolist()))


def sample(
    logits: torch.Tensor, rows: Ints, positions: Ints, mirror: RowMirror, grammar: GrammarMask | None = None
) -> Sampling:
    """logits [n, vocab_size] float32 of rows `rows` for the token at `positions` -> n tokens. Mutates the logits.

    The mirror must know all tokens of rows with penalties. A row whose logits hold NaN or +inf, or where no token is
    allowed, gets NO_TOKEN.
    """
    columns, device = mirror.sampling, logits.device
    if grammar is not None:
        apply_bitmask(logits, grammar.logit_rows, grammar.bitmask)
    if grammar is None and columns.plain[rows].all():
        return Sampling(_greedy(logits), rows, mirror)
    # 1. what is to be reported is the model's own view
    wanted = np.flatnonzero(columns.wants_logprobs[rows])
    raw = torch.log_softmax(logits[upload(wanted, device)], dim=-1) if len(wanted) else None
    # 2. change logits
    if columns.special[rows].any():
        apply_token_bias(logits, rows, positions, mirror)
    penalised = np.flatnonzero(columns.penalised[rows])
    if len(penalised):
        index = upload(penalised, device)
        part = logits[index]
        apply_penalties(part, rows[penalised], positions[penalised], mirror)
        logits[index] = part
    # 3. choose
    tokens = _greedy(logits)
    drawn = np.flatnonzero(columns.temperature[rows] > 0)
    if len(drawn):
        index = upload(drawn, device)
        chosen = _draw(logits[index], rows[drawn], positions[drawn], mirror)
        tokens[index] = chosen.masked_fill(tokens[index] == NO_TOKEN, NO_TOKEN)
    # 4. report
    report = None if raw is None else _Report(raw, wanted, tokens, columns.num_logprobs[rows])
    return Sampling(tokens, rows, mirror, report)


def accept_drafts(token_ids: TokenIds, owner: Ints, draft_token_ids: TokenIds, num_rows: int) -> tuple[TokenIds, Bools]:
    """Verification: of each row's sampled tokens, those up to and including the first that differs from its draft.

    token_ids [num_logits] sampled at the row's positions, owner [num_logits] as in `WantedLogits`. The sampled
    token at a position replaces a rejected draft, so the output is distributed as without drafts.
    Returns (tokens [num_rows, 1 + most drafts], taken, the same shape): row i's new tokens are tokens[i, taken[i]].
    """
    counts = np.bincount(owner, minlength=num_rows)
    column = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    tokens = np.zeros((num_rows, int(counts.max(initial=1))), dtype=np.int32)
    tokens[owner, column] = token_ids
    matches = np.zeros(tokens.shape, dtype=np.bool_)
    verified = column < counts[owner] - 1  # the last sampled token of a row has no draft to match
    matches[owner[verified], column[verified]] = token_ids[verified] == draft_token_ids
    accepted = np.cumprod(matches, axis=1).sum(axis=1)
    return tokens, np.arange(tokens.shape[1]) <= accepted[:, None]


def _greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of every row; equal logits: the lowest id. NO_TOKEN where the logits are not finite."""
    best, tokens = logits.max(dim=-1)
    return tokens.masked_fill_(~torch.isfinite(best), NO_TOKEN)


def _draw(logits: torch.Tensor, rows: Ints, positions: Ints, mirror: RowMirror) -> torch.Tensor:
    """One token per row from softmax(logits / temperature), truncated."""
    columns, device = mirror.sampling, logits.device
    logits = logits / upload(columns.temperature[rows], device)[:, None]
    top_k, top_p, min_p = columns.top_k[rows], columns.top_p[rows], columns.min_p[rows]
    truncate(
        logits,
        upload(top_k, device) if ((top_k > 0) & (top_k < logits.shape[1])).any() else None,
        upload(top_p, device) if (top_p < 1).any() else None,
        upload(min_p, device) if (min_p > 0).any() else None,
    )
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    draws = upload(uniform(columns.seed[rows], positions), device)[:, None]
    return torch.searchsorted(sums, draws * sums[:, -1:], right=True)[:, 0]


class _Report:
    """Log-probabilities of some logit rows, on their way to the host."""

    def __init__(self, raw: torch.Tensor, wanted: Ints, tokens: torch.Tensor, num_logprobs: Ints) -> None:
        """raw [len(wanted), vocab_size] log-probabilities; tokens and num_logprobs of all logit rows."""
        chosen = tokens[upload(wanted, raw.device)].clamp(min=0)[:, None]
        logprob = raw.gather(1, chosen)
        rank = 1 + (raw > logprob).sum(dim=-1, keepdim=True)
        top = raw.topk(min(int(num_logprobs[wanted].max()), raw.shape[1]), dim=-1)
        self._values = Download(torch.cat((logprob, top.values), dim=1))
        self._ids = Download(torch.cat((rank, top.indices), dim=1))
        self._wanted = wanted
        self._num_logprobs = num_logprobs

    def entries(self, token_ids: TokenIds) -> tuple[TokenLogprobs | None, ...]:
        """[num_logits]; waits."""
        values, ids = self._values.wait(), self._ids.wait()
        top_values, top_ids = values[:, 1:], ids[:, 1:].astype(np.int32)
        logprobs, ranks = values[:, 0].tolist(), ids[:, 0].tolist()
        entries: list[TokenLogprobs | None] = [None] * len(token_ids)
        for k, position in enumerate(self._wanted.tolist()):
            n = int(self._num_logprobs[position])
            entries[position] = TokenLogprobs(
                int(token_ids[position]), logprobs[k], ranks[k], top_ids[k, :n], top_values[k, :n]
            )
        return tuple(entries)
