"""POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from hybrid.async_engine import RequestStream
from hybrid.frontend.generation import Logprobs, Update
from hybrid.frontend.messages import Conversation, read_conversation
from hybrid.frontend.prompt import Prompt
from hybrid.outputs import RequestOutput

from .answering import Answering, openai_reason, usage_of
from .chat_protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChatMessage,
    Delta,
)
from .errors import ApiError
from .logprobs import chat_logprobs
from .protocol import Usage
from .request_ids import request_id_of
from .sampling import check_logprobs, refuse, sampling_params
from .service import Service


class ChatAnswering(Answering):
    """A conversation that is being answered."""

    def __init__(self, service: Service, body: ChatCompletionRequest, request_id: str) -> None:
        """Raises ApiError."""
        super().__init__(service, body, request_id)
        self._body = body
        refuse(body, "chat_template", "prompt_logprobs", "tools", "functions", "audio")
        if body.modalities not in (None, [], ["text"]):
            raise ApiError(400, f"modalities can only be text, got {body.modalities}", param="modalities")
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
        check_logprobs(body.top_logprobs, service.config.max_logprobs, "top_logprobs")
        most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        self._params = sampling_params(
            body,
            replace(service.config.defaults, max_tokens=None),
            max_tokens=most,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )

    async def start(self) -> RequestStream:
        conversation = await read_chat(self.service, self._body.messages)
        prompt = await self.service.engine.prepare(chat_prompt, self.service, self._body, conversation)
        return await self.service.submit(
            self.request_id, [prompt], self._params, priority=self._body.priority, adapter=self.adapter
        )

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        [output] = outputs
        choices = []
        for completion in output.outputs:
            reason = openai_reason(completion.finish_reason)
            assert reason is not None
            choices.append(
                ChatChoice(
                    index=completion.index,
                    message=AssistantMessage(content=completion.text),
                    logprobs=self._logprobs(completion.logprobs),
                    finish_reason=reason,
                    stop_reason=completion.stop_reason,
                )
            )
        return ChatCompletion(
            id=self.request_id, created=self.created, model=self.model, choices=choices, usage=usage_of(outputs)
        )

    def first_chunks(self, running: RequestStream) -> list[ChatCompletionChunk]:
        delta = Delta(role="assistant", content="")
        return [
            self._chunk([ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)])
            for index in range(len(running.sequences))
        ]

    def chunk(self, sequence: int, update: Update, usage: Usage | None) -> ChatCompletionChunk | None:
        if not (update.text or update.logprobs or update.finish_reason):
            return None
        choice = ChatChunkChoice(
            index=sequence,
            delta=Delta(content=update.text) if update.text or not update.finish_reason else Delta(),
            logprobs=self._logprobs(update.logprobs),
            finish_reason=openai_reason(update.finish_reason),
        )
        if update.stop_reason is not None:
            choice.stop_reason = update.stop_reason
        return self._chunk([choice], usage)

    def last_chunk(self, usage: Usage) -> ChatCompletionChunk:
        return self._chunk([], usage)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatCompletionChunk:
        chunk = ChatCompletionChunk(
            id=self.request_id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
        )
        if self.include_usage:
            chunk.usage = usage
        return chunk

    def _logprobs(self, entries: Sequence[Logprobs] | None) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        number = self._body.top_logprobs or 0
        return chat_logprobs(entries or (), self.service.tokenizer, number, bool(self._body.return_tokens_as_token_ids))


async def read_chat(service: Service, messages: Sequence[ChatMessage]) -> Conversation:
    """The conversation with its pictures fetched. Raises ValueError."""
    return read_conversation(
        await service.media.read_messages([message.model_dump(exclude_unset=True) for message in messages])
    )


def chat_prompt(service: Service, body: ChatCompletionRequest, conversation: Conversation) -> Prompt:
    """May take long. Raises ValueError."""
    return service.engine.processor.process_chat(
        conversation,
        body.cache_salt or "",
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        variables=body.chat_template_kwargs or {},
    )


def chat_router(service: Service) -> APIRouter:
    """The route, over this service."""
    router = APIRouter(tags=["OpenAI"])

    @router.post(
        "/v1/chat/completions",
        response_class=Response,
        responses={
            200: {
                "description": "The answer; with stream, events that each hold a chunk, then [DONE].",
                "model": ChatCompletion,
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        },
    )
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await ChatAnswering(service, body, f"chatcmpl-{request_id_of(request)}").answer(request)

    return router
