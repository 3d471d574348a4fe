"""Arrival: one request of a workload, as plain data. Knows segments; no tokens, no model, no scheduler."""

from dataclasses import dataclass

from .segments import Segment


@dataclass(frozen=True, slots=True)
class ImageOf:
    """An image of a prompt: equal keys are equal images. offset: of its first token in the prompt."""

    key: int
    offset: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a request comes, and what it is.

    time: seconds since the workload's start; for a later turn, seconds after the answer of `after` is complete.
    prompt: of a later turn, the earlier prompt, its answer, and what is new. Images' tokens are segments of it.
    output: what the model "will generate"; its length is the answer's.
    after: index of the arrival whose answer this one follows.
    adapter: None: the base model; `rank` is then 0.
    hints: ends of messages within the prompt, ascending, as `NewRequest.resume_hints`.
    """

    time: float
    prompt: tuple[Segment, ...]
    output: Segment
    after: int | None = None
    adapter: str | None = None
    rank: int = 0
    images: tuple[ImageOf, ...] = ()
    priority: int = 0
    hints: tuple[int, ...] = ()

    @property
    def prompt_length(self) -> int:
        """Tokens, images included."""
        return sum(segment.length for segment in self.prompt)
