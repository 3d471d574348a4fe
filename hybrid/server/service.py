"""Service: what routes share: the engine, what it serves and under which names. Knows no bodies of answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.adapters.adapter import Adapter
from hybrid.async_engine import AsyncEngine, RequestStream, Submission
from hybrid.frontend.media import MediaFetcher
from hybrid.frontend.prompt import Prompt
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.sampling_params import SamplingParams

from .adapters import Adapters
from .errors import ApiError

MOST_NAMES = 10  # in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What is served. model_names: under which the model is known; answers use the first.

    root: the checkpoint's name or path. defaults: sampling for fields that a request leaves out.
    max_logprobs: most that a request may ask for per token.
    """

    model_names: Sequence[str]
    root: str
    max_model_len: int
    defaults: SamplingParams
    vocab_size: int
    max_logprobs: int


class Service:
    """One per server. Nothing changes after construction but the engine."""

    def __init__(
        self, engine: AsyncEngine, config: ServerConfig, media: MediaFetcher, adapters: Adapters | None
    ) -> None:
        self.engine = engine
        self.adapters = adapters
        self.media = media
        self.config = config
        self.started = int(time.time())

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ApiError, 400, when the server was started without."""
        if self.engine.processor.tokenizer is None:
            raise ApiError(400, "this server has no tokenizer: pass token ids to /v1/completions")
        return self.engine.processor.tokenizer

    def model(self, asked: str | None) -> tuple[str, Adapter | None]:
        """The name to answer under, and the adapter behind it. Raises ApiError, 404, for one that is not there."""
        if asked is None:
            return self.config.model_names[0], None
        if asked in self.config.model_names:
            return asked, None
        adapter = self.adapters.find(asked) if self.adapters is not None else None
        if adapter is None:
            raise self.unknown_model(asked)
        return asked, adapter

    def unknown_model(self, asked: str) -> ApiError:
        """The 404 for a name that stands for nothing; it says which do."""
        names = list(self.config.model_names)
        names += [name for name, _ in self.adapters.folders()] if self.adapters is not None else []
        served = ", ".join(map(repr, names[:MOST_NAMES])) + (", ..." if len(names) > MOST_NAMES else "")
        message = f"the model {asked!r} does not exist; served: {served}"
        return ApiError(404, message, param="model", code="model_not_found")

    async def submit(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        priority: int | None,
        adapter: Adapter | None,
    ) -> RequestStream:
        """Mutates the engine: see `AsyncEngine.submit`. Raises ValueError, EngineDeadError and, 404, ApiError for an
        adapter that is no longer there."""
        names = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
        while True:
            submissions = [
                Submission(request_id=name, prompt=prompt, params=params, priority=priority or 0, adapter=adapter)
                for name, prompt in zip(names, prompts, strict=True)
            ]
            try:
                return await self.engine.submit(submissions)
            except ValueError:
                if adapter is None:
                    raise
                _, current = self.model(adapter.name)
                if current == adapter:  # else it was replaced since the request came
                    raise
                adapter = current
