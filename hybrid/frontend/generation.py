"""Generation: one request's tokens on their way to the user: text, stop strings, log-probabilities.

Knows the parameters of its request; knows neither scheduler nor runner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hybrid.outputs import FinishReason, Logprob
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import TokenIds

from .detokenizer import Decodes, Detokenizer
from .stop_strings import StopStrings

if TYPE_CHECKING:  # the runner brings torch
    from hybrid.runner.sampler import TokenLogprobs

Logprobs = Mapping[int, Logprob]
CONTEXT_TOKENS = 5  # prompt tokens that the detokenizer sees before the first piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What is new of one request since its last update.

    `text` is ready to be shown: no broken characters, nothing that may turn out to be a stop string. `logprobs` has one
    entry per token when asked for. `finish_reason` comes with the last update; `error` says why, in a sentence.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


class Generation:
    """The output side of one request. `advance` for tokens, `end` once."""

    def __init__(
        self, request_id: str, params: SamplingParams, prompt_token_ids: TokenIds, tokenizer: Decodes | None
    ) -> None:
        """`tokenizer` None: no text is made, whatever the parameters ask for."""
        self.request_id = request_id
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        if params.detokenize and tokenizer is not None:
            context = prompt_token_ids[-CONTEXT_TOKENS:].tolist()
            self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens, context)
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._num_tokens = 0
        self._token_ids: list[int] = []  # not yet in an update
        self._text: list[str] = []
        self._logprobs: list[Logprobs] = []
        self.stop_string: str | None = None

    def advance(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None, stop_token: bool = False
    ) -> None:
        """Mutates: these tokens follow. `stop_token`: the last of them ended the request and is no part of the text.

        Once `stop_string` is set, tokens after it are dropped, and so is everything that comes later.
        """
        if self.stop_string is not None:
            return
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            self._token_ids.append(token_id)
            if self._params.logprobs is not None:
                assert logprobs is not None, f"request {self.request_id!r} asked for logprobs and got none"
                self._logprobs.append(self._describe(logprobs[index]))
            hidden = stop_token and index == len(token_ids) - 1 and not self._params.include_stop_str_in_output
            if self._detokenizer is None or hidden:
                continue
            piece = self._detokenizer.push((token_id,))
            released = self._stops.push(piece, may_stop=self._num_tokens > self._params.min_tokens)
            self._text.append(released.text)
            if released.stop is not None:
                self.stop_string = released.stop
                return

    def take(self, num_cached_tokens: int) -> Update:
        """Mutates: what came since the last update."""
        update = Update(
            request_id=self.request_id,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs) if self._params.logprobs is not None else None,
            num_cached_tokens=num_cached_tokens,
        )
        self._text.clear()
        self._token_ids.clear()
        self._logprobs.clear()
        return update

    def end(
        self, num_cached_tokens: int, reason: FinishReason, stop_reason: int | None = None, error: str | None = None
    ) -> Update:
        """Mutates: the last update, with the text that was held back. A stop string found wins over `reason`."""
        if self.stop_string is None:
            self._text.append(self._stops.flush())
        last = self.take(num_cached_tokens)
        if self.stop_string is not None:
            return replace(last, finish_reason="stop", stop_reason=self.stop_string)
        return replace(last, finish_reason=reason, stop_reason=stop_reason, error=error)

    def _describe(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """The generated token first, then the most likely ones."""
        described = {entry.token_id: Logprob(entry.logprob, entry.rank, self._decoded(entry.token_id))}
        for rank, (token_id, logprob) in enumerate(zip(entry.top_token_ids.tolist(), entry.top_logprobs.tolist()), 1):
            if token_id not in described:
                described[token_id] = Logprob(logprob, rank, self._decoded(token_id))
        return described

    def _decoded(self, token_id: int) -> str | None:
        return self._tokenizer.decode((token_id,)) if self._tokenizer is not None else None
