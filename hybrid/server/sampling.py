"""Sampling: a request's fields -> SamplingParams. Raises ApiError for what is not supported or never right."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hybrid.sampling_params import SamplingParams
from hybrid.structured_outputs import StructuredOutputsParams

from .errors import ApiError
from .protocol import MOST_STOPS, SamplingRequest

# Those that mean the same in a request and in SamplingParams.
_SAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
# vLLM's, without which the answer would be another one.
_UNSUPPORTED = ("bad_words", "allowed_token_ids", "use_beam_search", "truncate_prompt_tokens")
_STRUCTURED = tuple(entry.name for entry in fields(StructuredOutputsParams))


def sampling_params(
    request: SamplingRequest,
    defaults: SamplingParams,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    tool_call: StructuredOutputsParams | None = None,
) -> SamplingParams:
    """defaults: for fields that the request leaves out. tool_call: what tool_choice forces. Raises ApiError, 400."""
    refuse(request, *_UNSUPPORTED)
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options is only allowed with stream", param="stream_options")
    if isinstance(request.stop, list) and len(request.stop) > MOST_STOPS:
        raise ApiError(400, f"stop must hold at most {MOST_STOPS} strings, got {len(request.stop)}", param="stop")
    chosen = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    try:
        return replace(
            defaults,
            **chosen,
            max_tokens=max_tokens if max_tokens is not None else defaults.max_tokens,
            logprobs=logprobs,
            logit_bias=_logit_bias(request.logit_bias),
            structured_outputs=_structured_outputs(request, tool_call),
        )
    except ValueError as error:
        raise ApiError(400, str(error), param=_named(str(error), request)) from None


def refuse(request: SamplingRequest, *names: str) -> None:
    """Raises ApiError, 400, for a field of these that says anything: ignoring it would give a wrong answer."""
    for name in names:
        if getattr(request, name):
            raise ApiError(400, f"{name} is not supported", param=name, code="unsupported_parameter")


def check_logprobs(number: int | None, most: int, param: str) -> None:
    """Raises ApiError, 400."""
    if number is not None and number > most:
        raise ApiError(400, f"{param} must be at most {most}, got {number}", param=param)


def _logit_bias(biases: Mapping[str, float] | None) -> dict[int, float] | None:
    """JSON has strings for keys. Raises ValueError."""
    if biases is None:
        return None
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise ValueError(f"logit_bias must map token ids to numbers, got the key {key!r}")
    return {int(key): bias for key, bias in biases.items()}


def _structured_outputs(
    request: SamplingRequest, tool_call: StructuredOutputsParams | None
) -> StructuredOutputsParams | None:
    """Raises ValueError, also when more than one field says what the answer must follow."""
    found: dict[str, dict[str, Any]] = {}
    blanks: dict[str, Any] = {}
    if request.response_format is not None and request.response_format.type != "text":
        found["response_format"] = _response_format(request)
    if request.structured_outputs:
        given = {name: value for name, value in request.structured_outputs.items() if value is not None}
        unknown = [name for name in given if name not in _STRUCTURED]
        if unknown:
            raise ValueError(f"structured_outputs has no {unknown[0]!r}; there are {', '.join(_STRUCTURED)}")
        if given.keys() == {"disable_any_whitespace"}:  # says how, not what: it goes with any of the other fields
            blanks = given
        else:
            found["structured_outputs"] = given
    for name in ("json", "regex", "choice", "grammar"):
        value = getattr(request, f"guided_{name}")
        if value is not None:
            found[f"guided_{name}"] = {name: value}
    if blanks and not found and tool_call is None:
        found["structured_outputs"] = blanks  # of nothing: refused below
    names = [*found, *(["tool_choice"] if tool_call is not None else [])]
    if len(names) > 1:
        raise ValueError(f"only one of {', '.join(names)} can say what the answer follows")
    for name, given in found.items():
        try:
            return StructuredOutputsParams(**{**given, **blanks})
        except ValueError as error:
            raise ValueError(f"{name} cannot be followed: {error}") from None
    return tool_call


def _response_format(request: SamplingRequest) -> dict[str, Any]:
    assert request.response_format is not None
    if request.response_format.type == "json_object":
        return {"json_object": True}
    if request.response_format.json_schema is None:
        raise ValueError("response_format of type json_schema needs json_schema")
    return {"json": request.response_format.json_schema.schema_}


def _named(message: str, request: SamplingRequest) -> str | None:
    """The field that a sentence begins with."""
    first = message.split("[")[0].split(" ")[0]
    return first if first in type(request).model_fields else None
