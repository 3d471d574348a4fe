"""LaunchedStep: a plan that the device works on, and what the host learns of it once it is done.

Knows the row mirror, which learns the tokens; neither the model nor the caches.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from hybrid.scheduler.plan import Ints, StepPlan, StepResult

from .batch import Drafted, WantedLogits
from .row_mirror import RowMirror
from .sampler import Chunks, NonFiniteLogits, Sampled, Sampling, TokenLogprobs, accept_drafts


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What one plan gave. logprobs[j] belongs to sampling row j: one entry per new token, None where not asked for."""

    result: StepResult
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...]


class LaunchedStep:
    """Of one plan with rows. Steps are settled in the order of the plans, each once."""

    def __init__(
        self,
        plan: StepPlan,
        sampling: Sampling,
        wanted: WantedLogits,
        drafted: Drafted | None,
        mirror: RowMirror,
        chunks: Chunks | None = None,
    ) -> None:
        self.plan = plan
        self.settled = False
        self._sampling = sampling
        self._chunks = chunks
        self._owner = wanted.owner
        self._drafted = drafted
        self._rows: Ints = plan.rows[plan.samples]
        drafts = plan.num_draft_tokens[plan.samples]
        self._drafts: Ints = drafts
        self._positions: Ints = (plan.num_computed_tokens + plan.num_scheduled_tokens)[plan.samples] - drafts
        self._mirror = mirror
        self._num_starts: Ints = mirror.num_starts[self._rows]
        self._void: set[int] = set()
        self._output: RunnerOutput | None = None
        self._error: Exception | None = None
        if not drafts.any():
            mirror.expect(self._rows, self._positions)

    @property
    def failed(self) -> bool:
        """Of a settled step."""
        return self._error is not None

    def settle(self) -> None:
        """Waits for the device. Mutates the mirror: it knows the sampled tokens; and the states of rows with drafts."""
        try:
            try:
                sampled = self._sampling.wait(self._void)
                if self._chunks is not None:
                    self._chunks.wait(self._void)
            except NonFiniteLogits as error:
                self._error = error
                sampled = self._sampling.wait(self._rows.tolist())
            self._output = self._learn(sampled)
        except Exception as error:  # the device is gone, and with it the tokens
            self._error = error
        self.settled = True

    def ignore(self, failed: "LaunchedStep") -> None:
        """Mutates: an earlier step failed, and the plan of this one was made without knowing: its rows will be computed
        anew, and what this step samples for them counts for nobody."""
        self._void.update(failed.plan.rows.tolist())

    def output(self) -> RunnerOutput:
        """Of a settled step. Raises the error with which it failed."""
        if self._error is not None:
            raise self._error
        assert self._output is not None, "a step that is not settled has no output"
        return self._output

    def _learn(self, sampled: Sampled) -> RunnerOutput:
        """Mutates, see `settle`."""
        rows, drafts = self._rows, self._drafts
        tokens, taken = accept_drafts(sampled.token_ids, self._owner, self.plan.draft_token_ids, len(rows))
        same = self._mirror.num_starts[rows] == self._num_starts  # another owner has tokens of its own
        self._mirror.append(rows[same], self._positions[same], tokens[same], taken[same])
        num_sampled = taken.sum(axis=1).astype(np.int64)
        if self._drafted is not None:
            self._drafted.commit(num_sampled)
        logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] = (None,) * len(rows)
        if sampled.logprobs:
            first = np.cumsum(1 + drafts) - (1 + drafts)
            parts = [
                sampled.logprobs[begin : begin + count] for begin, count in zip(first.tolist(), num_sampled.tolist())
            ]
            logprobs = tuple(_all_or_none(part) for part in parts)
        result = StepResult(
            step_id=self.plan.step_id,
            sampled_token_ids=tokens,
            num_sampled=num_sampled,
            draft_token_ids=np.zeros((len(rows), 0), dtype=np.int32),
            num_drafts=np.zeros(len(rows), dtype=np.int64),
        )
        return RunnerOutput(result, logprobs)


class LaunchedSteps:
    """The steps whose results the host may not know yet, oldest first."""

    def __init__(self) -> None:
        self._unsettled: deque[LaunchedStep] = deque()
        self._failed: list[LaunchedStep] = []  # whose results nobody has asked for yet

    def add(self, step: LaunchedStep) -> None:
        """Mutates: the latest one."""
        for failed in self._failed:
            step.ignore(failed)
        self._unsettled.append(step)

    def settle(self, last: LaunchedStep | None = None) -> None:
        """Mutates: waits for all of them, or up to `last`."""
        while self._unsettled and (last is None or not last.settled):
            step = self._unsettled[0]
            step.settle()
            self._unsettled.popleft()
            if step.failed:
                self._failed.append(step)
                for later in self._unsettled:
                    later.ignore(step)

    @torch.inference_mode()
    def result(self, step: LaunchedStep) -> RunnerOutput:
        """Waits for the step, and for those before it. Mutates: plans that are made from now on know whether they
        failed. Raises the error with which the step did."""
        self.settle(step)
        # nor do those before it matter, whose launch or wait was interrupted: nobody will ask for them
        self._failed = [failed for failed in self._failed if failed.plan.step_id > step.plan.step_id]
        return step.output()


def _all_or_none(entries: tuple[TokenLogprobs | None, ...]) -> tuple[TokenLogprobs, ...] | None:
    present = tuple(entry for entry in entries if entry is not None)
    assert len(present) in (0, len(entries))
    return present or None
