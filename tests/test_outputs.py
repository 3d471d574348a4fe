from typing import Any

import pytest

from hybrid import CompletionOutput, Logprob, RequestOutput


def completion(**changes: Any) -> CompletionOutput:
    return CompletionOutput(**{"index": 0, "text": "ab", "token_ids": (1, 2), **changes})


def request(**changes: Any) -> RequestOutput:
    values = {"request_id": "r", "prompt": None, "prompt_token_ids": (7, 8, 9), "outputs": (), "finished": False}
    return RequestOutput(**{**values, **changes})


def test_a_completion_has_one_set_of_logprobs_per_token() -> None:
    one = {1: Logprob(-0.5, rank=1)}
    assert not completion(logprobs=[one, one]).finished
    with pytest.raises(AssertionError):
        completion(logprobs=[one])


def test_only_a_stop_has_a_stop_reason() -> None:
    assert completion(finish_reason="stop", stop_reason="end").finished
    with pytest.raises(AssertionError):
        completion(finish_reason="length", stop_reason="end")


def test_a_request_is_finished_when_all_its_sequences_are() -> None:
    done, going = completion(finish_reason="length"), completion(index=1)
    assert not request(outputs=(done, going)).finished
    with pytest.raises(AssertionError):
        request(outputs=(done, going), finished=True)


def test_a_refused_request_is_finished_without_any_sequence() -> None:
    assert request(finished=True, error="The prompt has 9 tokens, the window pool holds 8.").outputs == ()
    with pytest.raises(AssertionError):
        request(error="failed")


def test_no_more_tokens_are_cached_than_the_prompt_has() -> None:
    assert request(num_cached_tokens=3).num_cached_tokens == 3
    with pytest.raises(AssertionError):
        request(num_cached_tokens=4)
