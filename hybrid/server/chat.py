"""POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from hybrid.async_engine import RequestStream
from hybrid.frontend.generation import Logprobs, Update
from hybrid.frontend.messages import Conversation, read_conversation
from hybrid.frontend.prompt import Prompt
from hybrid.frontend.tool_calls import Parsed, ToolCall, ToolCallParser, ToolChoice, read_tools
from hybrid.outputs import FinishReason, RequestOutput

from .answering import Answering, openai_reason, usage_of
from .chat_protocol import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatFinishReason,
    ChatLogprobs,
    ChatMessage,
    Delta,
    DeltaFunction,
    DeltaToolCall,
    MessageToolCall,
)
from .errors import ApiError
from .event_stream import DESCRIBED_EVENTS
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
        refuse(body, "chat_template", "prompt_logprobs", "functions", "audio")
        if body.modalities not in (None, [], ["text"]):
            raise ApiError(400, f"modalities can only be text, got {body.modalities}", param="modalities")
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
        check_logprobs(body.top_logprobs, service.config.max_logprobs, "top_logprobs")
        self._tools = chat_tools(body)
        self._parsers: dict[int, ToolCallParser] = {}  # by sequence
        most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        self._params = sampling_params(
            body,
            replace(service.config.defaults, max_tokens=None),
            max_tokens=most,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            tool_call=self._tools.structured_outputs(),
        )

    async def start(self) -> RequestStream:
        conversation = await read_chat(self.service, self._body.messages)
        prompt = await self.service.engine.prepare(chat_prompt, self.service, self._body, conversation, self._tools)
        return await self.service.submit(
            self.request_id, [prompt], self._params, priority=self._body.priority, adapter=self.adapter
        )

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        [output] = outputs
        choices = []
        for completion in output.outputs:
            parsed, reason = self._parsed(completion.index, completion.text, completion.finish_reason)
            assert reason is not None
            calls = [_message_call(call) for call in parsed.calls] or None
            content = parsed.content or None if calls else parsed.content
            choices.append(
                ChatChoice(
                    index=completion.index,
                    message=AssistantMessage(content=content, tool_calls=calls),
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
        parsed, reason = self._parsed(sequence, update.text, update.finish_reason)
        calls = self._delta_calls(sequence, parsed)
        if not (parsed.content or calls or update.logprobs or reason):
            return None  # it is not known yet what this text is
        delta = Delta(content=parsed.content) if parsed.content or not (calls or reason) else Delta()
        if calls:
            delta.tool_calls = calls
        choice = ChatChunkChoice(
            index=sequence, delta=delta, logprobs=self._logprobs(update.logprobs), finish_reason=reason
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

    def _parsed(
        self, sequence: int, text: str, finish_reason: FinishReason | None
    ) -> tuple[Parsed, ChatFinishReason | None]:
        """Mutates: what the next piece of a sequence brings, and how it ends. As in OpenAI's API a call that was named
        ends with "stop"."""
        parser = self._parsers.setdefault(sequence, self._tools.parser())
        parsed = parser.push(text)
        reason: ChatFinishReason | None = openai_reason(finish_reason)
        if reason is not None:
            rest = parser.finish()
            parsed = Parsed(parsed.content + rest.content, parsed.calls + rest.calls, parsed.more_arguments)
            if reason == "stop" and parser.num_calls and self._tools.mode != "named":
                reason = "tool_calls"
        return parsed, reason

    def _delta_calls(self, sequence: int, parsed: Parsed) -> list[DeltaToolCall]:
        number = self._parsers[sequence].num_calls
        if parsed.more_arguments:
            return [DeltaToolCall(index=number - 1, function=DeltaFunction(arguments=parsed.more_arguments))]
        return [
            DeltaToolCall(
                index=index,
                id=call.id,
                type="function",
                function=DeltaFunction(name=call.name, arguments=call.arguments),
            )
            for index, call in enumerate(parsed.calls, number - len(parsed.calls))
        ]

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


def chat_tools(body: ChatCompletionRequest) -> ToolChoice:
    """Raises ApiError."""
    try:
        tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
        tools.structured_outputs()
    except ValueError as error:
        param = "tool_choice" if str(error).startswith("tool_choice") else "tools"
        raise ApiError(400, str(error), param=param) from None
    form = body.response_format
    if form is None or form.type == "text" or tools.forced:
        return tools
    return replace(tools, mode="none")  # an answer of that form is no call, even if it looks like one


def chat_prompt(service: Service, body: ChatCompletionRequest, conversation: Conversation, tools: ToolChoice) -> Prompt:
    """May take long. Raises ValueError."""
    return service.engine.processor.process_chat(
        conversation,
        body.cache_salt or "",
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        variables=tools.variables(body.chat_template_kwargs),
    )


def _message_call(call: ToolCall) -> MessageToolCall:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return MessageToolCall(id=call.id, type="function", function=function)


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
                "content": DESCRIBED_EVENTS,
            }
        },
    )
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await ChatAnswering(service, body, f"chatcmpl-{request_id_of(request)}").answer(request)

    return router
