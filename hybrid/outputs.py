"""What a caller gets back: one RequestOutput per request, one CompletionOutput per sampled sequence.

Plain data. Knows neither requests nor tokenizers: whoever makes these has the text already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural logarithm of one token's probability. `rank` counts from 1, the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One generated sequence, from its first token to the latest.

    `logprobs`, when asked for, holds one mapping per generated token: token id to Logprob, the generated token
    included. `finish_reason` is None while tokens still come; `stop_reason` is the stop string or stop token id that
    ended a sequence, and None when that was the end-of-sequence token.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]  # [num_generated_tokens]
    cumulative_logprob: float | None = None
    logprobs: Sequence[Mapping[int, Logprob]] | None = None  # [num_generated_tokens]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def __post_init__(self) -> None:
        assert self.logprobs is None or len(self.logprobs) == len(self.token_ids)
        assert self.stop_reason is None or self.finish_reason == "stop"

    @property
    def finished(self) -> bool:
        """Whether no further token will come."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request as far as it has come.

    `prompt` is None when token ids were given instead of text. `num_cached_tokens` counts prompt tokens whose
    computation the prefix cache saved. `error` says in one sentence why a request failed; a request that was never
    admitted has no `outputs`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]  # [num_prompt_tokens]
    outputs: tuple[CompletionOutput, ...]  # ordered by index
    finished: bool
    num_cached_tokens: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        assert not self.finished or all(output.finished for output in self.outputs)
        assert self.error is None or self.finished
        assert 0 <= self.num_cached_tokens <= len(self.prompt_token_ids)
