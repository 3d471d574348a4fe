"""Answering: one request of either API on its way, from prompts to the bytes of the answer.

Knows streaming, usage, and how requests end; subclasses know the shapes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal

from fastapi import Request, Response
from pydantic import BaseModel

from hybrid.async_engine import RequestStream
from hybrid.frontend.generation import Update
from hybrid.grammar.grammars import GATE as GRAMMAR_GATE
from hybrid.lora import GATE as ADAPTER_GATE
from hybrid.outputs import FinishReason, RequestOutput

from .errors import ApiError, as_api_error
from .event_stream import EventStream, event, unless_disconnected
from .protocol import PromptTokensDetails, SamplingRequest, Usage
from .service import Service


class Answering(ABC):
    """One request. `answer` once."""

    def __init__(self, service: Service, body: SamplingRequest, request_id: str) -> None:
        """Raises ApiError for a model that is not served."""
        self.service = service
        self.request_id = request_id
        self.model, self.adapter = service.model(body.model)
        self.created = int(time.time())
        self.stream = bool(body.stream)
        options = body.stream_options
        self.include_usage = options is not None and bool(options.include_usage)
        self.continuous_usage = self.include_usage and options is not None and bool(options.continuous_usage_stats)

    # --- what an API adds ----------------------------------------------------------------------------------------

    @abstractmethod
    async def start(self) -> RequestStream:
        """Mutates the engine: the request is under way. Raises ApiError, ValueError and EngineDeadError."""

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> BaseModel:
        """The body of an answer that is complete."""

    @abstractmethod
    def first_chunks(self, running: RequestStream) -> Sequence[BaseModel]:
        """Events before anything came."""

    @abstractmethod
    def chunk(self, sequence: int, update: Update, usage: Usage | None) -> BaseModel | None:
        """The event of an update; None where it has nothing to say."""

    @abstractmethod
    def last_chunk(self, usage: Usage) -> BaseModel:
        """The event that tells the usage."""

    # --- what they share -----------------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        """The whole answer, or the stream of it once something came. When the client goes, the request ends."""
        try:
            return await unless_disconnected(request.receive, self._answer())
        except ValueError as error:  # of the processor, about the prompt
            raise as_api_error(error) from None

    async def _answer(self) -> Response:
        running = await self.start()
        handed_over = False
        try:
            if not self.stream:
                outputs = await running.outputs()
                for output in outputs:
                    for completion in output.outputs:
                        check_end(completion.finish_reason, output.error)
                return Response(self.whole(outputs).model_dump_json(), media_type="application/json")
            updates = running.updates()
            first = await anext(updates)  # before a status is sent: what fails at once is no stream
            for update in first:
                check_end(update.finish_reason, update.error)
            response = EventStream(self._events(running, first, updates), lambda: self.service.engine.abort(running))
            handed_over = True
            return response
        finally:
            if not handed_over:
                self.service.engine.abort(running)

    async def _events(
        self, running: RequestStream, first: list[Update], updates: AsyncIterator[list[Update]]
    ) -> AsyncGenerator[bytes, None]:
        usage = StreamUsage(running)
        for opening in self.first_chunks(running):
            yield event(opening)
        news: list[Update] | None = first
        while news is not None:
            for update in news:
                usage.add(update)
                check_end(update.finish_reason, update.error)
                chunk = self.chunk(
                    running.sequences[update.request_id], update, usage.so_far() if self.continuous_usage else None
                )
                if chunk is not None:
                    yield event(chunk)
            news = await anext(updates, None)
        if self.include_usage:
            yield event(self.last_chunk(usage.so_far()))


class StreamUsage:
    """Counts the tokens of a stream as they come."""

    def __init__(self, running: RequestStream) -> None:
        self._prompt_tokens = sum(collector.num_prompt_tokens for collector in running.collectors)
        self._first = {collector.sequence_ids[0] for collector in running.collectors}
        self._cached: dict[str, int] = {}
        self._completion_tokens = 0

    def add(self, update: Update) -> None:
        """Mutates."""
        self._completion_tokens += len(update.token_ids)
        if update.request_id in self._first:
            self._cached[update.request_id] = update.num_cached_tokens

    def so_far(self) -> Usage:
        return _usage(self._prompt_tokens, self._completion_tokens, sum(self._cached.values()))


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """Of requests that are complete."""
    return _usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(completion.token_ids) for output in outputs for completion in output.outputs),
        sum(output.num_cached_tokens for output in outputs),
    )


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
    )


def check_end(reason: FinishReason | None, error: str | None) -> None:
    """Raises ApiError where a sequence ended without an answer: OpenAI's API has no finish_reason for that."""
    if reason == "abort":
        raise ApiError(503, "the request was ended because the server shuts down", code="aborted")
    if reason == "error":
        message = error or "the request failed"
        if message.startswith((f"{GRAMMAR_GATE}:", f"{ADAPTER_GATE}:")):  # what the client asked for cannot be had
            raise ApiError(400, message)
        raise ApiError(500, message)


def openai_reason(reason: FinishReason | None) -> Literal["stop", "length"] | None:
    """finish_reason as OpenAI spells it, of what `check_end` let pass."""
    assert reason != "abort" and reason != "error"
    return reason
