"""POST /tokenize and /detokenize, as vLLM has them."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from .chat import chat_prompt, chat_tools, read_chat
from .chat_protocol import ChatCompletionRequest, ChatMessage
from .errors import ApiError, as_api_error
from .protocol import RequestModel
from .service import Service


class TokenizeRequest(RequestModel):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = Field(None, description="Text.")
    messages: list[ChatMessage] | None = Field(None, min_length=1, description="A conversation.")
    add_special_tokens: bool | None = Field(
        None, description="What the tokenizer adds itself. Default: true for a prompt, false for messages."
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(None, description="What the conversation offers.")
    return_token_strs: bool | None = Field(None, description="The tokens' texts, too.")


class TokenizeResponse(BaseModel):
    """`count` tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Token ids."""

    model: str | None = None
    tokens: list[int] = Field(description="Each is below the size of the vocabulary.")


class DetokenizeResponse(BaseModel):
    """Their text."""

    prompt: str


def tokenization_router(service: Service) -> APIRouter:
    """The routes, over this service."""
    router = APIRouter(tags=["Tokens"])

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeResponse:
        """Token ids of a prompt or a conversation, images as the tokens that they take."""
        service.model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "one of prompt and messages is needed")
        tokenizer, processor = service.tokenizer, service.engine.processor
        try:
            if body.messages is None:
                prompt = await service.engine.prepare(
                    processor.process, body.prompt, body.add_special_tokens is not False
                )
            else:
                chat = ChatCompletionRequest.model_construct(**body.model_dump(exclude={"messages"}))
                conversation = await read_chat(service, body.messages)
                prompt = await service.engine.prepare(chat_prompt, service, chat, conversation, chat_tools(chat))
        except ValueError as error:
            raise as_api_error(error) from None
        token_ids = prompt.token_ids.tolist()
        texts = [tokenizer.decode((token_id,)) for token_id in token_ids] if body.return_token_strs else None
        return TokenizeResponse(
            count=len(token_ids), max_model_len=service.config.max_model_len, tokens=token_ids, token_strs=texts
        )

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of tokens."""
        service.model(body.model)
        for token_id in body.tokens:
            if not 0 <= token_id < service.config.vocab_size:
                raise ApiError(
                    400,
                    f"token id {token_id} is not below the vocabulary size {service.config.vocab_size}",
                    param="tokens",
                )
        return DetokenizeResponse(prompt=await service.engine.prepare(service.tokenizer.decode, body.tokens))

    return router
