"""Engine: scheduler, runner and output text put together. Requests in, updates out, one step at a time.

Knows no prompts as users write them (see `processor`) and no files. One thread drives it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hybrid.adapters.adapter import Adapter
from hybrid.encoders.inputs import EncoderInput
from hybrid.frontend.detokenizer import Decodes
from hybrid.frontend.generation import Generation, Update
from hybrid.frontend.prompt import Prompt
from hybrid.grammar.backend import Masks
from hybrid.grammar.grammars import Grammars, Verdict
from hybrid.models.image_positions import ImagePositions
from hybrid.scheduler.outcome import FinishedRequest, NewTokens
from hybrid.scheduler.plan import StepPlan
from hybrid.scheduler.request import Gate, NewRequest
from hybrid.scheduler.scheduler import Scheduler

from .lora import adapter_gate
from .sampling_params import SamplingParams

if TYPE_CHECKING:  # these bring torch
    from hybrid.adapters.store import AdapterStore
    from hybrid.runner.launched import RunnerOutput

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.001  # how long a step waits when requests exist but none can run: gates open by themselves


class Runner(Protocol):
    """What the engine asks of a model runner. `launch` starts a step and gives its result, which waits for it; the
    results are called for in the order of the plans. Both may raise; the engine goes on."""

    def add_request(
        self,
        request_id: str,
        params: SamplingParams,
        images: Mapping[str, EncoderInput] | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        image_positions: ImagePositions | None = None,
    ) -> None: ...

    def remove_request(self, request_id: str) -> None: ...

    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]: ...


class Engine:
    """Requests of any kind through one scheduler and one runner.

    Plans are launched in order; the oldest result is waited for and committed only when `max_plans_in_flight` plans are
    out or nothing more can be planned: with more than one, the next is planned and launched while a step runs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Decodes | None,
        eos_token_ids: Sequence[int] = (),
        max_plans_in_flight: int = 1,
        enable_prefix_caching: bool = True,
        adapters: AdapterStore | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.adapters = adapters
        self.grammars = grammars
        self._runner = runner
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._max_plans_in_flight = max_plans_in_flight
        self._enable_prefix_caching = enable_prefix_caching
        self._in_flight: deque[tuple[StepPlan, Callable[[], RunnerOutput]]] = deque()  # with the results, oldest first
        self._generations: dict[str, Generation] = {}
        self._held: dict[str, int] = {}  # by request id, the adapter that it holds
        self._unreported: list[Update] = []  # of a step that was interrupted

    @property
    def has_unfinished(self) -> bool:
        """Whether some request's last update has not been given out."""
        return bool(self._generations or self._unreported)

    @property
    def is_busy(self) -> bool:
        """Whether `step` has anything to do."""
        return self.has_unfinished or bool(self._in_flight)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        max_tokens: int,
        seed: int = 0,
        priority: int = 0,
        routing_key: str = "",
        adapter: Adapter | None = None,
        gates: tuple[Gate, ...] = (),
    ) -> None:
        """Mutates: the request waits. Raises ValueError, and changes nothing, when it can never run.

        max_tokens: `params.max_tokens` made definite, at most what the context holds. seed: of this request's draws.
        adapter: of `adapters`, held until the request ends; the request waits until its weights are there.
        """
        if request_id in self._generations:
            raise ValueError(f"request {request_id!r} exists already")
        if params.stop_strings and self._tokenizer is None:
            raise ValueError(f"stop strings need a tokenizer, which skip_tokenizer_init left out: {params.stop!r}")
        if adapter is not None and adapter.changes_images:
            prompt = prompt.for_adapter(adapter.lora_id)
        if adapter is not None and self.adapters is not None:
            gates = (*gates, adapter_gate(self.adapters, adapter))
        if params.structured_outputs is not None:
            if self.grammars is None:
                raise ValueError("structured outputs need a tokenizer, which skip_tokenizer_init left out")
            gates = (*gates, self.grammars.add(request_id, params))
        eos = () if params.ignore_eos else self._eos_token_ids
        new = NewRequest(
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            max_tokens=max_tokens,
            min_tokens=params.min_tokens,
            stop_token_ids=tuple(dict.fromkeys((*eos, *params.stop_tokens))),
            images=prompt.images,
            adapter=adapter,
            priority=priority,
            routing_key=routing_key,
            cache_salt=prompt.cache_salt,
            resume_hints=prompt.resume_hints,
            gates=gates,
            needs_grammar=params.structured_outputs is not None,
            enable_prefix_caching=self._enable_prefix_caching,
        )
        try:
            self._hold(request_id, adapter)
            self._runner.add_request(
                request_id, params, prompt.encoder_inputs, self._eos_token_ids, seed, prompt.image_positions
            )
            try:
                self.scheduler.add(new)
            except BaseException:
                self._runner.remove_request(request_id)
                raise
        except BaseException:
            self._release(request_id)
            raise
        self._generations[request_id] = Generation(request_id, params, prompt.token_ids, self._tokenizer)

    def _hold(self, request_id: str, adapter: Adapter | None) -> None:
        """Mutates the store. Raises ValueError for an adapter that was unloaded."""
        if adapter is not None and self.adapters is not None:
            self.adapters.hold(adapter.lora_id)
            self._held[request_id] = adapter.lora_id

    def _release(self, request_id: str) -> None:
        """Mutates: the request no longer needs its adapter and its grammar, if it had any."""
        if self.grammars is not None:
            self.grammars.forget(request_id)
        lora_id = self._held.pop(request_id, None)
        if lora_id is not None and self.adapters is not None:
            self.adapters.release(lora_id)

    def abort(self, request_id: str) -> bool:
        """Mutates: ends a request; its last update ("abort") comes with the next step. False: no such request runs."""
        return request_id in self._generations and self.scheduler.abort(request_id)

    def step(self) -> list[Update]:
        """Mutates: plan and launch as far as plans may be in flight, commit the oldest result, report what is new.

        An exception of the runner ends the requests that the scheduler gives up on, with the reason in their `error`;
        the engine stays usable. What is no Exception (an interrupt) is raised again once the ledgers are in order.
        """
        # 1. plan ahead
        while self.scheduler.num_in_flight < self._max_plans_in_flight:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            try:
                self._in_flight.append((plan, self._launch(plan)))
            except BaseException as error:
                self._in_flight.append((plan, partial(_raise, error)))
                while self._in_flight:
                    self._commit_oldest()
                return self._report()
        # 2. the oldest result becomes true
        if self._in_flight:
            self._commit_oldest()
            while self._in_flight and not self.scheduler.num_unfinished:
                self._commit_oldest()  # nobody waits for these; they hold memory until committed
            return self._report()
        # 3. nothing runs: some request ended outside a step, or all wait for something outside
        updates = self._report()
        if not updates and self.has_unfinished:
            time.sleep(IDLE_SECONDS)
        return updates

    def _launch(self, plan: StepPlan) -> Callable[[], RunnerOutput]:
        """The plan's result. Mutates: requests for which a grammar leaves nothing to sample end."""
        needed = plan.needs_grammar & plan.samples
        if self.grammars is None or not needed.any():
            return self._runner.launch(plan)
        rows = plan.rows[needed]
        masks = self.grammars.fill(zip(rows.tolist(), self.scheduler.memory.table.request_ids[rows].tolist()))
        try:
            return self._runner.launch(plan, masks)
        finally:
            for verdict in masks.verdicts():
                self._end_by_grammar(verdict)

    def _end_by_grammar(self, verdict: Verdict) -> None:
        """Mutates: the request is complete, or its grammar cannot go on."""
        if verdict.error is None:
            self.scheduler.finish(verdict.request_id)
        else:
            self.scheduler.finish_with_error(verdict.request_id, verdict.error)

    def _report(self) -> list[Update]:
        """Mutates: requests that ended give their last update; all updates are handed out."""
        self._end(self.scheduler.pop_finished())
        updates, self._unreported = self._unreported, []
        return updates

    def _commit_oldest(self) -> None:
        """Mutates: tokens of one result go to their requests, whose updates wait to be reported."""
        plan, result = self._in_flight.popleft()
        try:
            output = result()
            tokens = self.scheduler.commit(output.result)  # ValueError: not the result of that plan; nothing changed
        except BaseException as error:
            self._fail(plan, error)
            return
        finished = {ended.request_id: ended for ended in self.scheduler.pop_finished()}
        for request_id, verdict in self._advance(tokens, output, finished):
            ended = finished.get(request_id)
            if ended is not None:
                if ended.reason == "length" and verdict is not None and verdict.error is None:
                    finished[request_id] = replace(ended, reason="stop")  # complete with the last permitted token
                continue
            generation = self._generations[request_id]
            if generation.stop_string is not None:
                self.scheduler.finish(request_id)
            elif verdict is not None:
                self._end_by_grammar(verdict)
            else:
                self._unreported.append(generation.take(self.scheduler.num_cached_tokens(request_id)))
        self._end((*finished.values(), *self.scheduler.pop_finished()))

    def _advance(
        self, tokens: NewTokens, output: RunnerOutput, finished: Mapping[str, FinishedRequest]
    ) -> list[tuple[str, Verdict | None]]:
        """Mutates the generations that got tokens and their grammars. Returns their request ids with what the grammars
        say."""
        counts, rows, token_ids = tokens.num_tokens.tolist(), tokens.result_rows.tolist(), tokens.token_ids.tolist()
        advanced = []
        for request_id, ids, count, row in zip(tokens.request_ids.tolist(), token_ids, counts, rows):
            generation = self._generations.get(request_id)
            if generation is None or count == 0:
                continue
            ended = finished.get(request_id)
            stop_token = ended is not None and ended.stop_token_id is not None
            generation.advance(ids[:count], output.logprobs[row] if output.logprobs else None, stop_token)
            verdict = None
            if self.grammars is not None:
                verdict = self.grammars.advance(request_id, ids[: count - stop_token])
            advanced.append((request_id, verdict))
        return advanced

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """Mutates: the oldest plan in flight, which failed, is taken back. Raises again what is no Exception."""
        message = _said(error)
        if isinstance(error, Exception):
            logger.error("step %d failed: %s", plan.step_id, message, exc_info=error)
        self.scheduler.fail(plan.step_id, message, blamed=getattr(error, "request_ids", ()))
        if not isinstance(error, Exception):
            raise error

    def _end(self, finished: Iterable[FinishedRequest]) -> None:
        """Mutates: their last updates wait to be reported; nothing else of them stays here or in the runner."""
        for ended in finished:
            generation = self._generations.pop(ended.request_id)
            self._runner.remove_request(ended.request_id)
            self._release(ended.request_id)
            # As in vLLM, the model's own end of text is no stop reason.
            stop_reason = ended.stop_token_id if ended.stop_token_id not in self._eos_token_ids else None
            self._unreported.append(generation.end(ended.num_cached_tokens, ended.reason, stop_reason, ended.error))


def _said(error: BaseException) -> str:
    """What a failed step tells its requests."""
    name, text = type(error).__name__, str(error)
    if name == "OutOfMemoryError":  # torch's, whose other sentences are about one allocation
        text = f"{text.partition('.')[0]}; lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs"
    return f"{name}: {text}" if text else name


def _raise(error: BaseException) -> RunnerOutput:
    """The result of a plan whose launch failed."""
    raise error
