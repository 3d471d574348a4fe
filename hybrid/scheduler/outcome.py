"""What the scheduler reports after a step: the tokens that became true, and the requests that ended."""

from dataclasses import dataclass
from typing import Literal

from numpy import object_
from numpy.typing import NDArray

from .plan import Ints, TokenIds

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens committed by one step, one entry per request that got any.

    Entry i: request_ids[i] received token_ids[i, :num_tokens[i]], taken from row result_rows[i] of the StepResult
    (the index under which a runner keeps log-probabilities). Tokens after a stop token are already cut off.
    """

    step_id: int
    request_ids: NDArray[object_]  # [n] of str
    token_ids: TokenIds  # [n, max_tokens]
    num_tokens: Ints  # [n]
    result_rows: Ints  # [n]


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request left the scheduler, whatever the way. `stop_token_id` where a stop token ended it; `error` in words."""

    request_id: str
    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    stop_token_id: int | None = None
    error: str | None = None
