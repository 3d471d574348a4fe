"""Bodies of /v1/chat/completions. Shapes only, no behaviour."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .protocol import RequestModel, SamplingRequest, Usage

ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ChatMessage(RequestModel):
    """One message of a conversation. What else it has reaches the chat template."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(description="system, user, assistant, tool, or what else the chat template knows.")
    content: str | list[str | dict[str, Any]] | None = Field(
        None, description='Text, or parts: {"type": "text", "text"} and {"type": "image_url", "image_url": {"url"}}.'
    )


class ChatCompletionRequest(SamplingRequest):
    """A conversation to answer."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, description="Most tokens; default: what the context holds.")
    max_tokens: int | None = Field(None, description="The older name of max_completion_tokens, which wins.")
    logprobs: bool | None = Field(None, description="Whether to report logarithms of probabilities.")
    top_logprobs: int | None = Field(None, ge=0, description="How many of the most likely tokens; with logprobs.")
    add_generation_prompt: bool | None = Field(None, description="False: nothing begins the assistant's answer.")
    continue_final_message: bool | None = Field(
        None, description="Go on with the last message's text; needs add_generation_prompt false."
    )
    add_special_tokens: bool | None = Field(None, description="What the tokenizer adds, besides the template.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables for the chat template.")
    chat_template: str | None = Field(None, description="Not supported: the model's template is used.")
    prompt_logprobs: int | None = Field(None, description="Not supported.")
    tools: list[dict[str, Any]] | None = Field(None, description='Each {"type": "function", "function": {...}}.')
    tool_choice: str | dict[str, Any] | None = Field(
        None, description='none, auto (default), required, or {"type": "function", "function": {"name"}}.'
    )
    parallel_tool_calls: bool | None = Field(None, description="False: at most one call.")
    functions: list[Any] | None = Field(None, description="Not supported: the older form of tools.")
    audio: dict[str, Any] | None = Field(None, description="Not supported.")
    modalities: list[str] | None = Field(None, description="Only text is supported.")


class TopLogprob(BaseModel):
    """A token that was likely at some position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry per token of the answer."""

    content: list[TokenLogprob] | None


class CalledFunction(BaseModel):
    """Which function, and with what."""

    name: str
    arguments: str = Field(description="JSON of what it is called with.")


class MessageToolCall(BaseModel):
    """A call that the client is to make."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class DeltaFunction(BaseModel):
    """What is new of a called function."""

    name: str | None = None
    arguments: str


class DeltaToolCall(BaseModel):
    """What is new of a call: the first delta of an index brings id, type and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunction


class AssistantMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatChoice(BaseModel):
    """One of n answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: int | str | None


class ChatCompletion(BaseModel):
    """All answers, complete."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(BaseModel):
    """What is new of an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None


class ChatChunkChoice(BaseModel):
    """What is new of one of n answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: int | str | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
