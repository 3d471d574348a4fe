"""What is wrong with a request is said in OpenAI's form, with the right status, and the server goes on."""

import json
from typing import Any

import pytest

from tests.server.serving import Running

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 2}


def refused(server: Running, path: str, body: object, status: int = 400) -> dict[str, Any]:
    """The error of a body that is refused, streaming or not."""
    answer = server.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("top_p", 0),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("min_tokens", 3),
        ("stop", [""]),
        ("stop", ["x"] * 129),
        ("stop_token_ids", [10**9]),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"999999": 1}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "xml"}),
        ("structured_outputs", {"json": {}, "regex": "a"}),
        ("structured_outputs", {"xml": "a"}),
        ("priority", 2**70),
        ("prompt_logprobs", 1),
        ("bad_words", ["Hello"]),
        ("allowed_token_ids", [5]),
        ("use_beam_search", True),
        ("truncate_prompt_tokens", 5),
    ],
)
def test_fields_that_cannot_be(server: Running, field: str, value: object, stream: bool) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        error = refused(server, path, {**body, field: value, "stream": stream})
        assert error["type"] == "invalid_request_error"
        assert field in f"{error['param']} {error['message']}" or "token id" in error["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": "Hello"},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]}]},
        {"top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": 2},
        {"stream_options": {"include_usage": True}},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template": "{{ messages }}"},
        {"audio": {"voice": "x"}},
        {"tools": [{"type": "function"}]},
    ],
)
def test_chats_that_cannot_be(server: Running, change: dict[str, object]) -> None:
    refused(server, "/v1/chat/completions", {**CHAT, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": None},
        {"prompt": []},
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": ["a", 3]},
        {"prompt": [-1]},
        {"prompt": [10**9]},
        {"prompt": [2**80]},
        {"prompt": {"text": "a"}},
        {"prompt": "\ud800"},
        {"logprobs": 21},
        {"logprobs": 1, "echo": True},
        {"suffix": "x"},
        {"best_of": 3},
    ],
)
def test_completions_that_cannot_be(server: Running, change: dict[str, object]) -> None:
    refused(server, "/v1/completions", {**TEXT, **change})


def test_a_prompt_that_is_too_long(server: Running) -> None:
    error = refused(server, "/v1/completions", {**TEXT, "prompt": [5] * 2048})
    assert error["code"] == "context_length_exceeded"


def test_one_wrong_prompt_of_several_stops_all(server: Running) -> None:
    error = refused(server, "/v1/completions", {**TEXT, "prompt": [[5, 6], [5] * 2047, [10**9]]})
    assert error["message"].startswith("prompt 2: ")
    assert server.stats().num_running == server.stats().num_waiting == 0


def test_an_unknown_model(server: Running) -> None:
    error = refused(server, "/v1/chat/completions", {**CHAT, "model": "gpt-17"}, 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert error["message"] == "the model 'gpt-17' does not exist; served: 'tiny', 'also-tiny'"


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b'"a"', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_request(server: Running, content: bytes) -> None:
    answer = server.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_not_declared_as_json(server: Running) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
    answer = server.http.post("/v1/completions", content=json.dumps(TEXT), headers=form)
    assert answer.status_code == 415 and "Content-Type: application/json" in answer.json()["error"]["message"]


def test_other_paths_and_methods(server: Running) -> None:
    error = server.http.get("/v1/nothing").json()["error"]
    assert error["type"] == "not_found_error" and error["message"].startswith("GET /v1/nothing is not a route")
    answer = server.http.get("/v1/completions")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json()["error"]["message"].startswith("GET /v1/completions is the wrong method")


def test_unknown_fields_are_ignored(server: Running) -> None:
    answer = server.http.post("/v1/chat/completions", json={**CHAT, "store": True, "metadata": {"a": "b"}, "x": 1})
    assert answer.status_code == 200


def test_request_ids(server: Running) -> None:
    answer = server.http.post("/v1/completions", json=TEXT, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["X-Request-Id"] == "mine-1" and answer.json()["id"] == "cmpl-mine-1"
    other = server.http.post("/v1/completions", json=TEXT, headers={"X-Request-Id": "not mine"})
    assert other.json()["id"] == f"cmpl-{other.headers['X-Request-Id']}" != "cmpl-not mine"
    assert server.http.get("/v1/nothing").headers["X-Request-Id"]


def test_tokens_there_and_back(server: Running) -> None:
    there = server.http.post("/tokenize", json={"prompt": "Hello there", "return_token_strs": True}).json()
    assert there["count"] == len(there["tokens"]) > 0 and "".join(there["token_strs"]) == "Hello there"
    assert server.http.post("/detokenize", json={"tokens": there["tokens"]}).json() == {"prompt": "Hello there"}
    chat = server.http.post("/tokenize", json={"messages": CHAT["messages"]}).json()
    usage = server.http.post("/v1/chat/completions", json=CHAT).json()["usage"]
    assert chat["count"] == usage["prompt_tokens"]
    refused(server, "/tokenize", {})
    refused(server, "/tokenize", {"prompt": "a", "messages": CHAT["messages"]})
    refused(server, "/detokenize", {"tokens": [10**9]})
    refused(server, "/detokenize", {"tokens": [2**80]})


def test_care(server: Running) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/ping").status_code == server.http.post("/ping").status_code == 200
    assert set(server.http.get("/version").json()) == {"version"}
    assert b"hybrid:pool_units" in server.http.get("/metrics").content
    assert {pool["pool"] for pool in server.http.get("/v1/pools").json()["pools"]} == set(server.stats().ledgers)


def test_a_value_without_end_is_not_repeated(server: Running) -> None:
    assert len(refused(server, "/v1/completions", {**TEXT, "model": "x" * 100_000}, 404)["message"]) < 3000


def test_more_answers_than_one_request_may_have(server: Running) -> None:
    error = refused(server, "/v1/completions", {**TEXT, "prompt": ["a"] * 1025, "n": 2})
    assert error["message"] == "prompts times n must be at most 2,048, got 2,050" and error["param"] == "prompt"
