"""Errors as OpenAI's API answers them: {"error": {"message", "type", "param", "code"}}. Knows no route.

Everything that is wrong with a request becomes an ApiError; what else is raised is a defect, and answered with 500.
"""

import json
import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from hybrid.async_engine import EngineDeadError
from hybrid.frontend.processor import PromptTooLongError

from .error_body import error_body

logger = logging.getLogger(__name__)

MAX_MESSAGE = 2000  # characters
STATUSES = (400, 401, 404, 413, 415, 429, 500, 503, 504)  # of routes
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorDescription(BaseModel):
    """What went wrong."""

    message: str = Field(description="One sentence.")
    type: str = Field(description="The kind of error, such as invalid_request_error.")
    param: str | None = Field(description="The field of the request that is wrong, where it is one.")
    code: str | int | None = Field(description="The error as programs may tell it from others, where it has a name.")


class ErrorResponse(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDescription


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def response(self) -> Response:
        # Only ASCII: a message may quote what is no valid Unicode.
        return Response(self.json(), self.status, media_type="application/json")

    def json(self) -> str:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        text = str(self)
        if len(text) > MAX_MESSAGE:  # it quotes a value without end
            text = f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 2 :]}"
        return json.dumps(error_body(text, kind, self.code, self.param))


def as_api_error(error: Exception) -> ApiError:
    """ValueErrors are the client's; everything unexpected is logged, and told without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, ValueError):
        return ApiError(400, str(error))
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), code="engine_dead")
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed at this request; its log says why")


def documented() -> dict[int | str, dict[str, Any]]:
    """Answers that are errors, for the OpenAPI description of a route."""
    return {status: {"model": ErrorResponse} for status in STATUSES}


def add_handlers(app: FastAPI) -> None:
    """Mutates the app: whatever is raised is answered in this form."""

    async def answer(request: Request, error: Exception) -> Response:
        return as_api_error(error).response()

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _invalid(error, request.headers.get("content-type", "")).response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code in (404, 405):  # the router's, as routes raise ApiError; its own words name nothing
            known = "is not a route" if error.status_code == 404 else "is the wrong method"
            message = f"{request.method} {request.url.path} {known} of this server; GET /docs lists what there is"
        response = ApiError(error.status_code, message).response()
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(ApiError, answer)
    app.add_exception_handler(EngineDeadError, answer)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, answer)


def _invalid(error: RequestValidationError, content_type: str) -> ApiError:
    """The first field that is not as described."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]]  # the first part says body, query or path
    if not place and content_type and "json" not in content_type.lower():  # the body was not read at all
        return ApiError(415, f"the body must come with Content-Type: application/json, not {content_type!r}")
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is no valid JSON")
    param = ".".join(place) or None
    return ApiError(400, f"{param or 'the body'}: {first['msg']}", param=place[0] if place else None)
