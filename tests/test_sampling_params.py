import math
import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid import SamplingParams

FLOATS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
INTS = ["n", "top_k", "max_tokens", "min_tokens", "logprobs", "seed"]
BOOLS = [
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "detokenize",
]


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.logprobs, params.seed) == (16, 0, None, None)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == ((), (), None)
    assert not params.greedy


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, True, "1", None])
def test_a_float_is_a_finite_number(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be (finite|a number), got .*\.$"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("value", [True, False, 1.0, "1", math.nan])
def test_an_integer_is_neither_a_bool_nor_a_float(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be an integer, got .*\.$"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BOOLS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_flag_is_a_bool(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be true or false"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "accepted", "refused", "message"),
    [
        ("n", 1, 0, "n must be at least 1, got 0."),
        ("n", 16384, 16385, "n must be at most 16384, got 16385."),
        ("temperature", 1e30, 1e39, "temperature must be at most 1e+30, got 1e+39."),
        ("repetition_penalty", 1e30, 1e39, "repetition_penalty must be at most 1e+30, got 1e+39."),
        ("repetition_penalty", 1e-29, 1e-40, "repetition_penalty must be at least 1e-30, got 1e-40."),
        ("top_k", 2**31 - 1, 2**63, "top_k must be at most 2147483647, got 9223372036854775808."),
        ("logprobs", 2**31 - 1, 2**63, "logprobs must be at most 2147483647, got 9223372036854775808."),
        ("temperature", 0, -0.1, "temperature must be at least 0, got -0.1."),
        ("top_p", 1e-9, 0.0, "top_p must be above 0, got 0.0."),
        ("top_p", 1, 1.5, "top_p must be at most 1, got 1.5."),
        ("top_k", -1, -2, "top_k must be at least -1, got -2."),
        ("min_p", 0, -1e-9, "min_p must be at least 0, got -1e-09."),
        ("min_p", 1.0, 1.5, "min_p must be at most 1, got 1.5."),
        ("repetition_penalty", 0.1, 0, "repetition_penalty must be above 0, got 0."),
        ("presence_penalty", -2, -2.1, "presence_penalty must be at least -2, got -2.1."),
        ("presence_penalty", 2, 2.1, "presence_penalty must be at most 2, got 2.1."),
        ("frequency_penalty", -2, -2.1, "frequency_penalty must be at least -2, got -2.1."),
        ("frequency_penalty", 2, 2.1, "frequency_penalty must be at most 2, got 2.1."),
        ("seed", 2**63 - 1, 2**63, f"seed must be at most {2**63 - 1}, got {2**63}."),
        ("seed", -(2**63), -(2**63) - 1, f"seed must be at least {-(2**63)}, got {-(2**63) - 1}."),
        ("max_tokens", None, 0, "max_tokens must be at least 1, got 0."),
        ("min_tokens", 0, -1, "min_tokens must be at least 0, got -1."),
        ("min_tokens", 16, 17, "min_tokens must not exceed max_tokens=16, got 17."),
        ("logprobs", 0, -1, "logprobs must be at least 0, got -1."),
        ("stop", "a", "", "stop must not hold an empty string, got ''."),
        ("stop", ["a", "b"], ["a", ""], "stop must not hold an empty string, got ['a', '']."),
        ("stop", ("a",), ["a", 1], "stop must be a string or a list of strings, got ['a', 1]."),
        ("stop", [], b"a", "stop must be a string or a list of strings, got b'a'."),
        ("stop", None, {"a": 1}, "stop must be a string or a list of strings, got {'a': 1}."),
        ("stop_token_ids", [0], [-1], "a token id in stop_token_ids must be at least 0, got -1."),
        ("stop_token_ids", [], [True], "a token id in stop_token_ids must be an integer, got True."),
        ("stop_token_ids", (7,), 7, "stop_token_ids must be a list of integers, got 7."),
        ("stop_token_ids", None, "7", "stop_token_ids must be a list of integers, got '7'."),
        ("logit_bias", {0: 1}, {-1: 1.0}, "a token id in logit_bias must be at least 0, got -1."),
        ("logit_bias", {}, {"1": 1.0}, "a token id in logit_bias must be an integer, got '1'."),
        ("logit_bias", {1: 100}, {1: 101}, "logit_bias[1] must be at most 100, got 101."),
        ("logit_bias", {1: -100}, {1: -101}, "logit_bias[1] must be at least -100, got -101."),
        ("logit_bias", {1: 0.5}, {1: math.nan}, "logit_bias[1] must be finite, got nan."),
        ("logit_bias", None, [1], "logit_bias must map token ids to numbers, got [1]."),
    ],
)
def test_a_refusal_is_one_sentence_with_the_value(name: str, accepted: Any, refused: Any, message: str) -> None:
    SamplingParams(**{name: accepted})
    with pytest.raises(ValueError, match="got") as raised:
        SamplingParams(**{name: refused})
    assert str(raised.value) == message


def test_values_are_stored_in_their_normal_form() -> None:
    params = SamplingParams(temperature=1, top_k=-1, stop="end", stop_token_ids=[3, 4], logit_bias={5: 1})
    assert type(params.temperature) is float
    assert params.top_k == 0
    assert params.stop == params.stop_strings == ("end",)
    assert params.stop_token_ids == params.stop_tokens == (3, 4)
    assert params.logit_bias == {5: 1.0}


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (0.0, True), (1e-40, True), (1e-5, False), (2, False)])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float, greedy: bool) -> None:
    params = SamplingParams(temperature=temperature)
    assert params.greedy is greedy
    assert (params.temperature == 0.0) is greedy


def test_a_stop_string_needs_text_to_be_found_in() -> None:
    with pytest.raises(ValueError, match="stop needs detokenize=True"):
        SamplingParams(stop="end", detokenize=False)
    assert SamplingParams(stop_token_ids=[1], detokenize=False).stop == ()


def test_the_callers_containers_can_change_without_effect() -> None:
    stop, bias = ["a"], {1: 1.0}
    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("b")
    bias[2] = 2.0
    assert params.stop == ("a",)
    assert params.logit_bias == {1: 1.0}


def test_params_are_frozen_and_hashable_and_travel_between_processes() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, seed=3)
    with pytest.raises(FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(params) == hash(SamplingParams(stop=("a",), logit_bias={1: 2.0}, seed=3))
    assert asdict(params)["stop"] == ("a",)


def test_a_replaced_value_is_checked_again() -> None:
    params = SamplingParams(stop=["a"], max_tokens=None)
    assert replace(params, n=2).stop == ("a",)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        replace(params, n=0)


@given(st.sampled_from(FLOATS), st.one_of(st.floats(), st.integers()))
def test_a_number_is_stored_finite_or_refused_with_a_value_error(name: str, value: float) -> None:
    try:
        params = SamplingParams(**{name: value})  # type: ignore[arg-type]
    except ValueError:
        return
    assert math.isfinite(getattr(params, name))
