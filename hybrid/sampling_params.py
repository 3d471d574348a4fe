"""SamplingParams: how the tokens of one request are chosen and when they end.

Knows no model: whether a token id exists in the vocabulary, or `max_tokens` fits the context, is checked where the
request is added.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .structured_outputs import StructuredOutputsParams

# Below this, logits divided by the temperature leave the range of float32; vLLM draws the same line.
_GREEDY_BELOW = 1e-5
_MOST_SEQUENCES = 16_384  # as in vLLM
_MOST_INT = 2**31 - 1  # of what the runner keeps as integers
_MOST_FACTOR = 1e30  # logits multiplied or divided by it stay within float32


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters, named and meant as in vLLM and the OpenAI API.

    Values are checked when the object is made; a ValueError names the parameter and its value. What is stored is
    normalised: floats are floats, `stop` and `stop_token_ids` tuples, `top_k` -1 becomes 0 (off), and a temperature
    too small to divide by becomes 0 (greedy).

    n: how many sequences to generate for the prompt, at most 16384.
    temperature: divides the logits; 0 takes the most likely token.
    top_p: keep the most likely tokens whose probabilities first sum to this, in (0, 1].
    top_k: keep this many of the most likely tokens; 0 or -1 keeps all.
    min_p: keep tokens at least this probable relative to the most likely one, in [0, 1].
    repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is off.
    presence_penalty: subtracted from the logits of tokens already generated, in [-2, 2].
    frequency_penalty: subtracted once per earlier generation of the token, in [-2, 2].
    seed: makes the request's draws repeatable, in the range of a signed 64-bit integer.
    stop: strings that end generation; they are cut from the text unless `include_stop_str_in_output`.
    stop_token_ids: tokens that end generation, besides the model's end-of-sequence tokens.
    ignore_eos: go on after an end-of-sequence token.
    max_tokens: most tokens to generate; None is as many as the context holds.
    min_tokens: no stop condition applies before this many tokens.
    logprobs: how many of the most likely tokens to report at each position; 0 reports the generated token alone.
    logit_bias: added to the logits of these token ids, each in [-100, 100].
    skip_special_tokens: leave special tokens out of the text.
    spaces_between_special_tokens: taken as vLLM takes it; as there, it changes nothing with tokenizers of this kind.
    detokenize: make text of the tokens; without it `stop` cannot be watched for.
    structured_outputs: what the text must follow: a JSON schema, a regular expression, a grammar, ...
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        """Check every value and store its normal form."""
        _check_int("n", self.n, at_least=1, at_most=_MOST_SEQUENCES)
        _check_int("top_k", self.top_k, at_least=-1, at_most=_MOST_INT)
        _check_int("min_tokens", self.min_tokens, at_least=0)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, at_least=1)
            if self.min_tokens > self.max_tokens:
                raise ValueError(f"min_tokens must not exceed max_tokens={self.max_tokens}, got {self.min_tokens}.")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, at_least=0, at_most=_MOST_INT)
        if self.seed is not None:
            _check_int("seed", self.seed, at_least=-(2**63), at_most=2**63 - 1)
        for name in (
            "include_stop_str_in_output",
            "ignore_eos",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "detokenize",
        ):
            _check_bool(name, getattr(self, name))

        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise ValueError(f"structured_outputs must be StructuredOutputsParams, got {self.structured_outputs!r}.")
        temperature = _as_float("temperature", self.temperature, at_least=0.0, at_most=_MOST_FACTOR)
        normal: dict[str, object] = {
            "temperature": temperature if temperature >= _GREEDY_BELOW else 0.0,
            "top_p": _as_float("top_p", self.top_p, above=0.0, at_most=1.0),
            "top_k": max(self.top_k, 0),
            "min_p": _as_float("min_p", self.min_p, at_least=0.0, at_most=1.0),
            "repetition_penalty": _as_float(
                "repetition_penalty",
                self.repetition_penalty,
                above=0.0,
                at_least=1 / _MOST_FACTOR,
                at_most=_MOST_FACTOR,
            ),
            "presence_penalty": _as_float("presence_penalty", self.presence_penalty, at_least=-2.0, at_most=2.0),
            "frequency_penalty": _as_float("frequency_penalty", self.frequency_penalty, at_least=-2.0, at_most=2.0),
            "stop": _as_stop_strings(self.stop),
            "stop_token_ids": _as_token_ids(self.stop_token_ids),
            "logit_bias": _as_logit_bias(self.logit_bias),
        }
        if normal["stop"] and not self.detokenize:
            raise ValueError(f"stop needs detokenize=True, got stop={self.stop!r}.")
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` in its stored form."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """`stop_token_ids` in its stored form."""
        assert isinstance(self.stop_token_ids, tuple)
        return self.stop_token_ids


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}.")


def _check_int(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    # bool is a subclass of int, and True is no count.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value!r}.")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}.")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {value}.")


def _as_float(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    if not abs(value) < math.inf or abs(value) > 1e308:  # nan, infinite, or an int that no float holds
        raise ValueError(f"{name} must be finite, got {value!r}.")
    if above is not None and value <= above:
        raise ValueError(f"{name} must be above {above:g}, got {value!r}.")
    if at_least is not None and value < at_least:
        raise ValueError(f"{name} must be at least {at_least:g}, got {value!r}.")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name} must be at most {at_most:g}, got {value!r}.")
    return float(value)


def _as_stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(string, str) for string in strings):
        raise ValueError(f"stop must be a string or a list of strings, got {value!r}.")
    if "" in strings:
        raise ValueError(f"stop must not hold an empty string, got {value!r}.")
    return tuple(strings)


def _as_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise ValueError(f"stop_token_ids must be a list of integers, got {value!r}.")
    token_ids = tuple(value)
    for token_id in token_ids:
        _check_int("a token id in stop_token_ids", token_id, at_least=0)
    return token_ids


def _as_logit_bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {value!r}.")
    biases = {}
    for token_id, bias in value.items():
        _check_int("a token id in logit_bias", token_id, at_least=0)
        biases[token_id] = _as_float(f"logit_bias[{token_id}]", bias, at_least=-100.0, at_most=100.0)
    return biases
