"""GET /v1/models and /v1/models/{name}."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from .service import Service


class ModelCard(BaseModel):
    """One name that requests may give as `model`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hybrid"
    root: str = Field(description="What the name stands for.")
    parent: str | None = Field(description="The model that an adapter belongs to.")
    max_model_len: int | None = Field(description="Most tokens of prompt and answer together.")


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def models_router(service: Service) -> APIRouter:
    """The routes, over this service."""
    router = APIRouter(tags=["OpenAI"])

    def cards() -> list[ModelCard]:
        config, adapters = service.config, service.adapters
        folders = adapters.folders() if adapters is not None else []
        base = config.model_names[0]

        def card(name: str, root: str, parent: str | None, most: int | None) -> ModelCard:
            return ModelCard(id=name, created=service.started, root=root, parent=parent, max_model_len=most)

        return [card(name, config.root, None, config.max_model_len) for name in config.model_names] + [
            card(name, folder, base, None) for name, folder in folders
        ]

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The model under all its names, and its adapters."""
        return ModelList(data=cards())

    @router.get("/v1/models/{name:path}")  # a name may be a path, or an id of the hub
    async def retrieve_model(name: str) -> ModelCard:
        """One of them."""
        found = next((card for card in cards() if card.id == name), None)
        if found is None:
            raise service.unknown_model(name)
        return found

    return router
