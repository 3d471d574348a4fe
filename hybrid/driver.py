"""Driver: runs an engine in the calling thread until given requests are done, and takes them back when interrupted.

Knows prompts that are processed already, n > 1 and seeds; knows no files and no text formats.
"""

import hashlib
from collections.abc import Sequence
from itertools import count

from hybrid.adapters.adapter import Adapter
from hybrid.frontend.collector import Collector
from hybrid.frontend.generation import Update
from hybrid.frontend.processor import Processor
from hybrid.frontend.prompt import Prompt

from .engine import Engine
from .interrupts import DeferredInterrupts
from .sampling_params import SamplingParams


class Driver:
    """Requests of several callers may be under way; a step serves them all."""

    def __init__(self, engine: Engine, processor: Processor, seed: int) -> None:
        self._engine = engine
        self._processor = processor
        self._seed = seed
        self._numbers = count()
        self._collectors: dict[str, Collector] = {}  # by the engine's request id
        self._news: dict[Collector, list[Update]] = {}  # of steps that nobody was told about yet
        self.num_tokens = 0  # generated since the start

    @property
    def is_busy(self) -> bool:
        """Whether `step` has anything to do or to say."""
        return self._engine.is_busy or bool(self._news)

    def submit(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        adapters: Sequence[Adapter | None] | None = None,
        names: Sequence[str] | None = None,
    ) -> list[Collector]:
        """Mutates: all of them wait, or none. Raises ValueError, naming the prompt's index where there are several.

        adapters: one each; None: the base model. names: of the requests, none of which may be under way; None: they
        are numbered.
        """
        submitted: list[Collector] = []
        try:
            for index, (prompt, chosen, priority) in enumerate(zip(prompts, params, priorities, strict=True)):
                adapter = adapters[index] if adapters is not None else None
                try:
                    name = names[index] if names is not None else None
                    with DeferredInterrupts():  # at whose end the request is listed, and so taken back
                        submitted.append(self._submit_one(prompt, chosen, priority, adapter, name))
                except ValueError as error:
                    raise ValueError(f"prompt {index}: {error}" if len(prompts) > 1 else str(error)) from None
        except BaseException:
            self.cancel(submitted)
            raise
        return submitted

    def _submit_one(
        self, prompt: Prompt, params: SamplingParams, priority: int, adapter: Adapter | None, name: str | None
    ) -> Collector:
        max_tokens = self._processor.max_tokens(prompt, params)
        number = next(self._numbers)
        seed = params.seed if params.seed is not None else _derive_seed(self._seed, number)
        name = name if name is not None else str(number)
        names = (name,) if params.n == 1 else tuple(f"{name}-{index}" for index in range(params.n))
        collector = Collector(name, prompt, names)
        try:
            for sequence_id, sequence_seed in zip(names, _sequence_seeds(seed, params.n), strict=True):
                self._engine.add_request(
                    sequence_id,
                    prompt,
                    params,
                    max_tokens=max_tokens,
                    seed=sequence_seed,
                    priority=priority,
                    adapter=adapter,
                )
                self._collectors[sequence_id] = collector
        except BaseException:
            self.cancel([collector])
            raise
        return collector

    def step(self) -> dict[Collector, list[Update]]:
        """Mutates: one step of the engine. Returns what came since the last one, by request. Ctrl-C waits for its
        end."""
        with DeferredInterrupts():
            self._step()
            news, self._news = self._news, {}
            return news

    def abort(self, collectors: Sequence[Collector]) -> None:
        """Mutates: what of these requests is not finished will end with one of the next steps."""
        for collector in collectors:
            for sequence_id in collector.sequence_ids:
                if self._collectors.get(sequence_id) is collector:
                    self._engine.abort(sequence_id)

    def cancel(self, collectors: Sequence[Collector]) -> None:
        """Mutates: what of these requests is not finished ends, and the steps in flight are waited for."""
        with DeferredInterrupts():
            self.abort(collectors)
            while any(self._collectors.get(sequence_id) is c for c in collectors for sequence_id in c.sequence_ids):
                self._step()
            for collector in collectors:
                self._news.pop(collector, None)

    def _step(self) -> None:
        for update in self._engine.step():
            collector = self._collectors[update.request_id]
            collector.add(update)
            self.num_tokens += len(update.token_ids)
            self._news.setdefault(collector, []).append(update)
            if update.finish_reason is not None:
                del self._collectors[update.request_id]


def _derive_seed(*parts: int) -> int:
    """64 bits that depend on all the parts, and on their order."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _sequence_seeds(seed: int, n: int) -> list[int]:
    """Seeds of the n sequences of one request: the first keeps `seed`, so that n does not change what it draws."""
    return [seed if index == 0 else _derive_seed(seed, index) for index in range(n)]
