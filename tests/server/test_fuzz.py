"""Whatever the OpenAPI description allows, and much that it forbids, is answered as it says, and never with 5xx."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hybrid.engine_args import EngineArgs
from tests.server.serving import Running, serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WITHOUT_BODY = (
    ("GET", "/health"),
    ("GET", "/ping"),
    ("POST", "/ping"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/pools"),
    ("GET", "/v1/requests/{request_id}/explain"),
)
WITH_BODY = (
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Short contexts: most requests set no limit to their answer."""
    args = EngineArgs(model="tiny", max_num_seqs=64, memory="64MiB", max_model_len=64, num_threads=1, enable_lora=True)
    with serving(args) as running:
        yield running


@pytest.fixture(scope="module")
def schema(server: Running) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_operation_is_fuzzed_and_has_a_name(schema: schemathesis.BaseSchema) -> None:
    operations = [
        (path, method, operation) for path, of_path in schema.items() for method, operation in of_path.items()
    ]
    assert {(method.upper(), path) for path, method, _ in operations} == {*WITHOUT_BODY, *WITH_BODY}
    names = [operation.definition.raw["operationId"] for _, _, operation in operations]
    assert len(set(names)) == len(names)


def fuzz(cases: st.SearchStrategy[schemathesis.Case[Any]], max_examples: int) -> None:
    @settings(max_examples=max_examples)
    @given(cases)
    def answered_as_described(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(checks=CHECKS)

    answered_as_described()


@pytest.mark.parametrize(("method", "path"), WITHOUT_BODY)
def test_without_a_body(schema: schemathesis.BaseSchema, method: str, path: str) -> None:
    fuzz(schema[path][method].as_strategy(GenerationMode.POSITIVE), max_examples=5)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), WITH_BODY)
def test_with_a_body(schema: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode) -> None:
    fuzz(schema[path][method].as_strategy(mode), max_examples=60)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})],
)
def test_events_are_described(schema: schemathesis.BaseSchema, path: str, asked: dict[str, Any]) -> None:
    """Which the cases above hardly ever ask for."""
    case = schema[path]["POST"].Case(body={**asked, "stream": True}, media_type="application/json")
    case.call_and_validate(checks=CHECKS)
