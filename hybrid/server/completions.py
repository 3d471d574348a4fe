"""POST /v1/completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from fastapi import APIRouter, Request, Response

from hybrid.async_engine import RequestStream
from hybrid.frontend.generation import Logprobs, Update
from hybrid.frontend.prompt import Prompt
from hybrid.outputs import RequestOutput

from .answering import Answering, openai_reason, usage_of
from .completion_protocol import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from .errors import ApiError
from .event_stream import DESCRIBED_EVENTS
from .logprobs import completion_logprobs, num_characters
from .protocol import MOST_ANSWERS, Usage
from .request_ids import request_id_of
from .sampling import check_logprobs, refuse, sampling_params
from .service import Service

DEFAULT_MAX_TOKENS = 16


class CompletionAnswering(Answering):
    """Prompts that are being continued."""

    def __init__(self, service: Service, body: CompletionRequest, request_id: str) -> None:
        """Raises ApiError."""
        super().__init__(service, body, request_id)
        self._body = body
        refuse(body, "suffix", "prompt_logprobs")
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise ApiError(400, f"best_of can only be n, got {body.best_of}", param="best_of")
        if body.echo and body.logprobs is not None:
            raise ApiError(400, "echo is not supported together with logprobs", param="echo")
        check_logprobs(body.logprobs, service.config.max_logprobs, "logprobs")
        self._params = sampling_params(
            body,
            replace(service.config.defaults, max_tokens=DEFAULT_MAX_TOKENS),
            max_tokens=body.max_tokens,
            logprobs=body.logprobs,
        )
        self._prompts = list_prompts(body.prompt)
        answers = len(self._prompts) * self._params.n
        if answers > MOST_ANSWERS:
            raise ApiError(400, f"prompts times n must be at most {MOST_ANSWERS:,}, got {answers:,}", param="prompt")
        self._echoes: list[str] = []  # texts of the prompts, where they are wanted
        self._offsets: dict[int, int] = {}  # by sequence: characters of a stream's tokens so far

    async def start(self) -> RequestStream:
        prompts = await self.service.engine.prepare(self._process)
        return await self.service.submit(
            self.request_id, prompts, self._params, priority=self._body.priority, adapter=self.adapter
        )

    def _process(self) -> list[Prompt]:
        """Mutates `_echoes`. May take long. Raises ValueError and ApiError."""
        prompts = []
        for index, given in enumerate(self._prompts):
            try:
                key = "prompt" if isinstance(given, str) else "prompt_token_ids"
                prompt = self.service.engine.processor.process(
                    {key: given, "cache_salt": self._body.cache_salt},
                    add_special_tokens=self._body.add_special_tokens is not False,
                )
            except ValueError as error:
                raise type(error)(f"prompt {index}: {error}" if len(self._prompts) > 1 else str(error)) from None
            prompts.append(prompt)
            if self._body.echo:
                text = prompt.text
                self._echoes.append(
                    text if text is not None else self.service.tokenizer.decode(prompt.token_ids.tolist())
                )
        return prompts

    def whole(self, outputs: Sequence[RequestOutput]) -> Completion:
        choices = []
        for number, output in enumerate(outputs):
            for completion in output.outputs:
                choices.append(
                    CompletionChoice(
                        index=number * self._params.n + completion.index,
                        text=self._echo(number) + completion.text,
                        logprobs=self._logprobs(completion.logprobs, 0),
                        finish_reason=openai_reason(completion.finish_reason),
                        stop_reason=completion.stop_reason,
                    )
                )
        return self._completion(choices, usage_of(outputs))

    def first_chunks(self, running: RequestStream) -> list[Completion]:
        return [
            self._completion([CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)])
            for index in running.sequences.values()
            if (text := self._echo(index // self._params.n))
        ]

    def chunk(self, sequence: int, update: Update, usage: Usage | None) -> Completion | None:
        if not (update.text or update.logprobs or update.finish_reason):
            return None
        offset = self._offsets.get(sequence, 0)
        self._offsets[sequence] = offset + num_characters(update.logprobs or ())
        choice = CompletionChoice(
            index=sequence,
            text=update.text,
            logprobs=self._logprobs(update.logprobs, offset),
            finish_reason=openai_reason(update.finish_reason),
        )
        if update.stop_reason is not None:
            choice.stop_reason = update.stop_reason
        return self._completion([choice], usage)

    def last_chunk(self, usage: Usage) -> Completion:
        return self._completion([], usage)

    def _completion(self, choices: list[CompletionChoice], usage: Usage | None = None) -> Completion:
        completion = Completion(
            id=self.request_id, object="text_completion", created=self.created, model=self.model, choices=choices
        )
        if usage is not None or self.include_usage:
            completion.usage = usage
        return completion

    def _echo(self, prompt: int) -> str:
        return self._echoes[prompt] if self._echoes else ""

    def _logprobs(self, entries: Sequence[Logprobs] | None, offset: int) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        return completion_logprobs(entries or (), offset, bool(self._body.return_tokens_as_token_ids))


def list_prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """Each prompt by itself. Raises ApiError, 400, where there is none."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "there is no prompt", param="prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return cast("list[str | list[int]]", prompt)


def completions_router(service: Service) -> APIRouter:
    """The route, over this service."""
    router = APIRouter(tags=["OpenAI"])

    @router.post(
        "/v1/completions",
        response_class=Response,
        responses={
            200: {
                "description": "The answer; with stream, events that each hold a part of it, then [DONE].",
                "model": Completion,
                "content": DESCRIBED_EVENTS,
            }
        },
    )
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Go on with prompts."""
        return await CompletionAnswering(service, body, f"cmpl-{request_id_of(request)}").answer(request)

    return router
