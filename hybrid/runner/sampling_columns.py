"""SamplingColumns: the sampling parameters of every row as numpy columns, so that a step gathers instead of loops.

Knows parameters, not logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import Bools, Ints

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenBias:
    """What one request adds to single logits: its logit_bias, and what min_tokens forbids for now."""

    token_ids: Ints  # [n] of logit_bias
    biases: Floats  # [n]
    stop_ids: Ints  # [m] end the request, so masked before min_tokens


class SamplingColumns:
    """Columns over rows; a row's values are void until `set`."""

    def __init__(self, num_rows: int) -> None:
        def floats(value: float) -> Floats:
            return np.full(num_rows, value, dtype=np.float32)

        self.temperature = floats(0.0)
        self.top_p = floats(1.0)
        self.min_p = floats(0.0)
        self.repetition = floats(1.0)
        self.presence = floats(0.0)
        self.frequency = floats(0.0)
        self.top_k: Ints = np.zeros(num_rows, dtype=np.int64)  # 0: all
        self.min_tokens: Ints = np.zeros(num_rows, dtype=np.int64)
        self.seed: NDArray[np.uint64] = np.zeros(num_rows, dtype=np.uint64)
        self.wants_logprobs: Bools = np.zeros(num_rows, dtype=np.bool_)
        self.num_logprobs: Ints = np.zeros(num_rows, dtype=np.int64)
        self.penalised: Bools = np.zeros(num_rows, dtype=np.bool_)
        self.special: Bools = np.zeros(num_rows, dtype=np.bool_)  # has an entry in token_bias that matters
        self.plain: Bools = np.ones(num_rows, dtype=np.bool_)  # greedy, nothing to change or report
        self.token_bias: dict[int, TokenBias] = {}

    def set(self, row: int, params: SamplingParams, seed: int, bias: TokenBias) -> None:
        """Mutates: the row has a new owner."""
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.top_k[row] = params.top_k
        self.repetition[row] = params.repetition_penalty
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.min_tokens[row] = params.min_tokens
        self.seed[row] = seed % 2**64
        self.wants_logprobs[row] = params.logprobs is not None
        self.num_logprobs[row] = params.logprobs or 0
        self.penalised[row] = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        self.special[row] = len(bias.token_ids) > 0 or (params.min_tokens > 0 and len(bias.stop_ids) > 0)
        self.plain[row] = params.greedy and not (self.penalised[row] or self.special[row] or self.wants_logprobs[row])
        self.token_bias[row] = bias


def token_bias(params: SamplingParams, eos_token_ids: Sequence[int], vocab_size: int) -> TokenBias:
    """The request's TokenBias. Raises ValueError for token ids that the vocabulary does not have."""
    biases = params.logit_bias or {}
    stop_ids = {*(() if params.ignore_eos else eos_token_ids), *params.stop_tokens}
    for name, ids in (("logit_bias", biases), ("stop_token_ids", params.stop_tokens), ("eos_token_ids", eos_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise ValueError(f"{name} names token {token_id}, but the vocabulary has {vocab_size} tokens")
    return TokenBias(
        token_ids=np.array(list(biases), dtype=np.int64),
        biases=np.array(list(biases.values()), dtype=np.float32),
        stop_ids=np.array(sorted(stop_ids), dtype=np.int64),
    )
