"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with the bodies and answers that vLLM has."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from .adapters import Adapters
from .errors import ApiError
from .event_stream import unless_disconnected
from .protocol import RequestModel
from .service import Service

SAID: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


class LoadLoRAAdapterRequest(RequestModel):
    """Which adapter, and where it is."""

    lora_name: str = Field(min_length=1, description="The model name under which it answers.")
    lora_path: str = Field(min_length=1, description="A PEFT folder on the server.")
    load_inplace: bool = Field(False, description="Replace the adapter of this name; else that is an error.")


class UnloadLoRAAdapterRequest(RequestModel):
    """Which adapter."""

    lora_name: str = Field(min_length=1, description="The model name under which it answers.")
    lora_int_id: int | None = Field(None, description="Not used.")


def lora_router(service: Service) -> APIRouter:
    """The routes, over this service."""
    router = APIRouter(tags=["Adapters"])

    def adapters() -> Adapters:
        if service.adapters is None:
            raise ApiError(400, "the server was started without --enable-lora")
        return service.adapters

    @router.post("/v1/load_lora_adapter", response_class=Response, responses=SAID)
    async def load_lora_adapter(body: LoadLoRAAdapterRequest) -> Response:
        """Load an adapter. Requests find it once it has been read."""
        name = body.lora_name
        if name in service.config.model_names:
            raise ApiError(400, f"{name!r} is the model itself", param="lora_name")
        if not body.load_inplace and adapters().find(name) is not None:
            raise ApiError(400, f"the adapter {name!r} is loaded already", param="lora_name")
        try:
            await adapters().load(name, body.lora_path, replace=body.load_inplace)
        except ValueError as error:
            raise ApiError(400, str(error), param="lora_path") from None
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", response_class=Response, responses=SAID)
    async def unload_lora_adapter(body: UnloadLoRAAdapterRequest, request: Request) -> Response:
        """Unload an adapter: no new request finds it; the answer comes when those that use it have ended."""
        name = body.lora_name
        if adapters().find(name) is None:
            raise ApiError(404, f"the adapter {name!r} is not loaded", param="lora_name", code="model_not_found")
        await unless_disconnected(request.receive, adapters().unload(name))
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    return router
