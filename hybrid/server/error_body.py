"""OpenAI's error body. Knows no framework."""

from typing import TypedDict


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: int | str | None


class ErrorBody(TypedDict):
    error: ErrorDetail


def error_body(message: str, kind: str, code: int | str | None = None, param: str | None = None) -> ErrorBody:
    """kind: OpenAI's error type, such as "invalid_request_error"."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
