"""Collector: the updates of one request, which may be several sequences (n > 1), become one RequestOutput."""

from dataclasses import dataclass, field

from hybrid.outputs import CompletionOutput, FinishReason, RequestOutput

from .generation import Logprobs, Update
from .prompt import Prompt


@dataclass(slots=True)
class _Sequence:
    """One generated sequence as far as it has come."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, update: Update) -> None:
        self.text.append(update.text)
        self.token_ids += update.token_ids
        if update.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += update.logprobs
            self.cumulative_logprob += sum(
                entry[token_id].logprob for entry, token_id in zip(update.logprobs, update.token_ids)
            )
        self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason

    def output(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text="".join(self.text),
            token_ids=tuple(self.token_ids),
            cumulative_logprob=self.cumulative_logprob if self.logprobs is not None else None,
            logprobs=tuple(self.logprobs) if self.logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class Collector:
    """`add` every update of the request's sequences; `output` at any time."""

    def __init__(self, request_id: str, prompt: Prompt, sequence_ids: tuple[str, ...]) -> None:
        """sequence_ids: the engine's request ids, one per sequence."""
        self.request_id = request_id
        self.sequence_ids = sequence_ids
        self._text = prompt.text
        self._prompt_token_ids = tuple(prompt.token_ids.tolist())  # once: a stream shows them at every step
        self._sequences = {sequence_id: _Sequence() for sequence_id in sequence_ids}
        self._num_cached_tokens = 0
        self._error: str | None = None

    def add(self, update: Update) -> None:
        """Mutates."""
        self._sequences[update.request_id].add(update)
        # Later sequences of a request find the prompt that the first one computed: what counts is the first one.
        if update.request_id == self.sequence_ids[0]:
            self._num_cached_tokens = update.num_cached_tokens
        self._error = self._error or update.error

    @property
    def finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self._sequences.values())

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Generated so far, by all sequences."""
        return sum(len(sequence.token_ids) for sequence in self._sequences.values())

    def output(self) -> RequestOutput:
        """The request as far as it has come."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._text,
            prompt_token_ids=self._prompt_token_ids,
            outputs=tuple(sequence.output(index) for index, sequence in enumerate(self._sequences.values())),
            finished=self.finished,
            num_cached_tokens=self._num_cached_tokens,
            error=self._error if self.finished else None,
        )
