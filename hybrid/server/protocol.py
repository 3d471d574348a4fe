"""What both generating routes understand and answer: fields of sampling, usage, streaming. Shapes only, no behaviour.

Names as in the OpenAI API; below those, as in vLLM. A field that is left out, or null, has its default.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_SEQUENCES = 128  # n, as in OpenAI's API
MOST_ANSWERS = 2048  # of one request: prompts times n, which begin in one go
MOST_STOPS = 128  # each is looked for at every token
MOST_INT = 2**63 - 1


class RequestModel(BaseModel):
    """A body that is read: fields of another type are refused, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class JsonSchema(RequestModel):
    """A JSON schema and its name."""

    name: str = Field(description="What the schema is called; not used.")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="The schema that the answer follows.")
    strict: bool | None = Field(None, description="The answer always follows the schema, whatever this says.")


class ResponseFormat(RequestModel):
    """What the answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = Field(None, description="Needed with the type json_schema.")


class StreamOptions(RequestModel):
    """What a stream tells besides the text."""

    include_usage: bool | None = Field(None, description="The usage in one more event, at the end.")
    continuous_usage_stats: bool | None = Field(None, description="The usage so far in every event.")


class SamplingRequest(RequestModel):
    """How to choose tokens, and when to end."""

    model: str | None = Field(None, description="The model, or one of its adapters. Default: the model.")
    temperature: float | None = Field(None, description="Divides the logits; 0 takes the most likely token.")
    top_p: float | None = Field(None, description="Keep the most likely tokens whose probabilities sum to this.")
    top_k: int | None = Field(None, description="Keep this many of the most likely tokens; 0 or -1 keeps all.")
    min_p: float | None = Field(None, description="Keep tokens this probable relative to the most likely one.")
    n: int | None = Field(None, ge=1, le=MOST_SEQUENCES, description="How many answers.")
    seed: int | None = Field(None, ge=-(2**63), le=MOST_INT, description="Makes the draws repeatable.")
    stop: str | list[str] | None = Field(None, description="Strings that end the answer and are cut from it.")
    stop_token_ids: list[int] | None = Field(None, description="Tokens that end the answer.")
    include_stop_str_in_output: bool | None = Field(None, description="Stop strings stay in the text.")
    ignore_eos: bool | None = Field(None, description="Go on after the model's end of text.")
    min_tokens: int | None = Field(None, description="Nothing ends the answer before this many tokens.")
    repetition_penalty: float | None = Field(None, description="Weakens tokens seen in prompt or answer.")
    presence_penalty: float | None = Field(None, description="Taken from the logits of tokens in the answer.")
    frequency_penalty: float | None = Field(None, description="The same, for every time a token was there.")
    logit_bias: dict[str, float] | None = Field(None, description="Added to the logits of these token ids.")
    skip_special_tokens: bool | None = Field(None, description="Special tokens are no part of the text.")
    spaces_between_special_tokens: bool | None = None
    response_format: ResponseFormat | None = Field(None, description="What the answer must be.")
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="One of json, json_object, regex, choice and grammar: what the answer must follow; and "
        "disable_any_whitespace, which may also stand alone beside response_format.",
    )
    guided_json: str | dict[str, Any] | None = Field(None, description="As structured_outputs.json.")
    guided_regex: str | None = Field(None, description="As structured_outputs.regex.")
    guided_choice: list[str] | None = Field(None, description="As structured_outputs.choice.")
    guided_grammar: str | None = Field(None, description="As structured_outputs.grammar.")
    stream: bool | None = Field(None, description="The answer in events, as it comes.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    priority: int | None = Field(
        None, ge=-(2**31), le=2**31 - 1, description="Lower runs earlier, with the scheduling policy priority."
    )
    cache_salt: str | None = Field(None, description="Cached prompts are shared only under the same salt.")
    user: str | None = Field(None, description="Not used.")
    return_tokens_as_token_ids: bool | None = Field(None, description="Logprobs name tokens token_id:ID.")
    bad_words: list[str] | None = Field(None, description="Not supported.")
    allowed_token_ids: list[int] | None = Field(None, description="Not supported.")
    use_beam_search: bool | None = Field(None, description="Not supported.")
    truncate_prompt_tokens: int | None = Field(None, description="Not supported.")


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Tokens whose computation the prefix cache saved.")


class Usage(BaseModel):
    """Tokens of one request, all its sequences together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
