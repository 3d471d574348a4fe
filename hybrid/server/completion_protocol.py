"""Bodies of /v1/completions. Shapes only, no behaviour."""

from typing import Literal

from pydantic import BaseModel, Field

from .protocol import SamplingRequest, Usage


class CompletionRequest(SamplingRequest):
    """Prompts to go on with."""

    prompt: str | list[int] | list[str] | list[list[int]] = Field(
        description="One or several prompts, as text or as token ids."
    )
    max_tokens: int | None = Field(None, description="Most tokens of each answer; default: 16.")
    logprobs: int | None = Field(None, ge=0, description="How many of the most likely tokens to report.")
    echo: bool | None = Field(None, description="The text begins with the prompt; not together with logprobs.")
    add_special_tokens: bool | None = Field(None, description="False: without what the tokenizer adds itself.")
    suffix: str | None = Field(None, description="Not supported.")
    best_of: int | None = Field(None, description="Not supported, except for the value of n.")
    prompt_logprobs: int | None = Field(None, description="Not supported.")


class CompletionLogprobs(BaseModel):
    """One entry per token of the answer, in every list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One answer, or in a stream what is new of it. `index`: prompt i's answer k is i * n + k."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None


class Completion(BaseModel):
    """All answers, complete; or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
