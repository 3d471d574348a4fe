"""Service: what routes share: the engine, what it serves and under which names. Knows no bodies of answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.adapters.registry import Adapter
from hybrid.async_engine import AsyncEngine, RequestStream, Submission
from hybrid.frontend.media import MediaFetcher
from hybrid.frontend.prompt import Prompt
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.sampling_params import SamplingParams

from .adapters import Adapters
from .errors import ApiError, as_api_error


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
    max_logprobs: int = 20


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
            raise ApiError(404, f"the model {asked!r} does not exist", param="model", code="model_not_found")
        return asked, adapter

    async def submit(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        priority: int | None = None,
        adapter: Adapter | None = None,
    ) -> RequestStream:
        """Mutates the engine. Whoever gets the stream calls `end` with it. Raises ApiError and EngineDeadError."""
        names = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]

        def submissions(adapter: Adapter | None) -> list[Submission]:
            return [
                Submission(request_id=name, prompt=prompt, params=params, priority=priority or 0, adapter=adapter)
                for name, prompt in zip(names, prompts, strict=True)
            ]

        if self.adapters is None or adapter is None:
            return await self._submit(submissions(None))
        name = adapter.name
        while True:
            _, adapter = self.model(name)  # it may have been replaced since the request came, or unloaded
            assert adapter is not None
            on_its_way = object()  # uses the adapter before there is a stream: unloading must not overtake it
            self.adapters.begin(on_its_way, adapter)
            try:
                stream = await self._submit(submissions(adapter))
                self.adapters.begin(stream, adapter)
                return stream
            except ApiError:
                if self.adapters.find(name) == adapter:
                    raise
            finally:
                self.adapters.end(on_its_way)

    async def _submit(self, submissions: Sequence[Submission]) -> RequestStream:
        try:
            return await self.engine.submit(submissions)
        except ValueError as error:
            raise as_api_error(error) from None

    def end(self, stream: RequestStream) -> None:
        """Mutates: nobody reads it any more; what of it still runs ends."""
        self.engine.abort(stream)
        if self.adapters is not None:
            self.adapters.end(stream)
