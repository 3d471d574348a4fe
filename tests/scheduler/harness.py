"""Harness: the scheduler with the shadow runner, collected outputs, and every invariant checked after every step."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hybrid.pools.ledger import EMPTY, Ints, Ledger, UnitPool
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.outcome import FinishedRequest
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler
from tests.scheduler.shadow import EOS, ShadowRunner, expected_output

FULL = Kinds(full=True, window=False, state=False)
WINDOW = Kinds(full=False, window=True, state=False)
STATE = Kinds(full=False, window=False, state=True)
HYBRID = Kinds(full=True, window=True, state=True)
MIXTURES = {
    "full": FULL,
    "window": WINDOW,
    "state": STATE,
    "full+window": Kinds(full=True, window=True, state=False),
    "full+state": Kinds(full=True, window=False, state=True),
    "window+state": Kinds(full=False, window=True, state=True),
    "full+window+state": HYBRID,
}


def tokens(count: int, seed: int = 1) -> list[int]:
    """A prompt of `count` tokens; different seeds differ from the first token on."""
    return [1 + (seed * 31 + i * i * 7 + i * seed) % 40 if i else 1 + seed % 49 for i in range(count)]


class Harness:
    """Settings are keywords: those of SchedulerConfig through `config`, those of PoolSizes directly.

    The defaults are roomy, so that a test states only what it is about."""

    def __init__(
        self,
        *,
        config: SchedulerConfig | None = None,
        kinds: Kinds = FULL,
        enable_prefix_caching: bool = True,
        clock: Callable[[], float] = lambda: 0.0,
        **sizes: int,
    ) -> None:
        self.config = config or SchedulerConfig()
        defaults = {
            "num_rows": 16, "num_full_blocks": 1024, "num_window_blocks": 1024, "num_state_slots": 64,
            "encoder_tokens": 4096, "lora_units": 64, "block_size": 16, "sliding_window": 16 if kinds.window else 0,
            "max_model_len": 4096,
            "lookahead": max(self.config.max_plans_in_flight - 1, self.config.num_draft_tokens),
        }  # fmt: skip
        self.sizes = PoolSizes(**{**defaults, **sizes})
        self.scheduler = Scheduler(
            self.config, self.sizes, kinds, enable_prefix_caching=enable_prefix_caching, clock=clock
        )
        self.memory = self.scheduler.memory
        self.runner = ShadowRunner(self.sizes, kinds, self.config.num_draft_tokens)
        self.requests: dict[str, NewRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, FinishedRequest] = {}
        self.results: deque[tuple[int, StepResult | None]] = deque()  # None: the step failed
        self.stopped: set[str] = set()  # ended by a call of ours
        self.touched: dict[int, list[tuple[UnitPool, Ints]]] = {}  # step in flight -> units that it reads or writes

    # --- requests ------------------------------------------------------------------------------------------------

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 16, **more: Any) -> NewRequest:
        """`more`: further fields of NewRequest."""
        new = NewRequest(
            request_id=request_id,
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            max_tokens=max_tokens,
            **{"stop_token_ids": (EOS,), **more},
        )
        self.scheduler.add(new)
        self.runner.add(new)
        self.requests[request_id] = new
        self.outputs[request_id] = []
        return new

    def abort(self, request_id: str) -> bool:
        return self._stop(request_id, self.scheduler.abort)

    def finish(self, request_id: str) -> bool:
        return self._stop(request_id, self.scheduler.finish)

    def _stop(self, request_id: str, stop: Callable[[str], bool]) -> bool:
        was_here = stop(request_id)
        if was_here:
            self.stopped.add(request_id)
        self.check()
        return was_here

    # --- steps ---------------------------------------------------------------------------------------------------

    def plan(self, fails: bool = False) -> StepPlan | None:
        """Schedule and execute; the result waits in `results`."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self._check_plan(plan)
            result = self.runner.execute(plan, fails)
            self.results.append((plan.step_id, None if fails else result))
            self.touched[plan.step_id] = self._touches(plan)
        self.check()
        return plan

    def commit(self, blamed: tuple[str, ...] = ()) -> None:
        """Hand in the oldest result, or that its step failed, because of the `blamed` requests if any."""
        step_id, result = self.results.popleft()
        self.touched.pop(step_id, None)
        if result is None:
            self.scheduler.fail(step_id, "the device is gone", blamed)
        else:
            new = self.scheduler.commit(result)
            for i, request_id in enumerate(new.request_ids.tolist()):
                self.outputs[request_id] += new.token_ids[i, : new.num_tokens[i]].tolist()
        self.check()

    def step(self) -> dict[str, int]:
        """One synchronous step: scheduled tokens by request id ({} when nothing could run)."""
        plan = self.plan()
        if plan is None:
            return {}
        counts = self.scheduled(plan)
        self.commit()
        return counts

    def run(self, max_steps: int = 10_000) -> None:
        """Plan as far ahead as allowed, commit the oldest, until nothing is left."""
        for _ in range(max_steps):
            while self.plan() is not None:
                pass
            if not self.results:
                assert self.scheduler.num_unfinished == 0, self.why()
                return
            self.commit()
        raise AssertionError(f"not done after {max_steps} steps: {self.why()}")

    def finish_all(self) -> None:
        """Run to the end; every output is right and nothing is held."""
        self.run()
        self.assert_outputs()
        self.assert_idle()

    # --- questions -----------------------------------------------------------------------------------------------

    def scheduled(self, plan: StepPlan) -> dict[str, int]:
        """Scheduled tokens by request id. Call it before the next plan is executed."""
        return {
            self.runner.name(row): count
            for row, count in zip(plan.rows.tolist(), plan.num_scheduled_tokens.tolist(), strict=True)
        }

    def ledgers(self) -> dict[str, Ledger]:
        return self.memory.ledgers()

    def hit(self, request_id: str) -> int:
        """Prompt tokens that a finished request took from the prefix cache."""
        return self.finished[request_id].num_cached_tokens

    def why(self) -> str:
        return "; ".join(self.scheduler.explain(name) for name in self.outputs if name not in self.finished)

    def check(self) -> None:
        """Every invariant, and what ended since the last time."""
        self.scheduler.check()
        for ended in self.scheduler.pop_finished():
            assert ended.request_id not in self.finished, "a request ends once"
            self.finished[ended.request_id] = ended
        for step_id, touched in self.touched.items():
            for pool, units in touched:
                given_up = units[(pool.refs[units] == 0) & (pool.busy[units] <= pool.settled_step)]
                assert len(given_up) == 0, f"{pool.name}: {given_up} could be reused while step {step_id} is in flight"

    def _touches(self, plan: StepPlan) -> list[tuple[UnitPool, Ints]]:
        """Every unit that the plan, just executed, reads or writes."""
        memory, runner, size = self.memory, self.runner, self.sizes.block_size
        starts = plan.num_computed_tokens
        lasts = (starts + plan.num_scheduled_tokens - 1) // size + 1
        firsts = np.maximum(starts - self.sizes.sliding_window + 1, 0) // size
        spans = list(zip(plan.rows.tolist(), firsts.tolist(), lasts.tolist(), strict=True))
        full = [runner.full_table[row, :last] for row, _, last in spans] if memory.kinds.full else []
        window = [runner.window_table[row, first:last] for row, first, last in spans] if memory.kinds.window else []
        slots = [*(snapshot.slot for snapshot in plan.snapshots if memory.kinds.state)]
        slots += [runner.rows[row].slot for row, _, _ in spans if memory.kinds.state]
        return [
            (memory.rows, plan.rows),
            (memory.full, np.concatenate([*full, plan.full_copies.ravel()])),
            (memory.window, np.concatenate([*window, plan.window_copies.ravel()])),
            (memory.state, np.concatenate([np.array(slots, dtype=np.int64), plan.state_copies.ravel()])),
            (
                memory.encoder,
                np.concatenate([EMPTY, *(i.slots for i in plan.encode), *(i.slots for i in plan.image_spans)]),
            ),
        ]

    def _check_plan(self, plan: StepPlan) -> None:
        """What holds of every plan, whatever the scheduler had in mind."""
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(plan.rows) > 0 and int(plan.num_scheduled_tokens.min()) >= 1
        assert len(set(plan.rows.tolist())) == len(plan.rows), "a row is in a plan once"
        assert sum(len(image.slots) for image in plan.encode) <= self.config.encoder_budget
        assert len(plan.draft_token_ids) == int(plan.num_draft_tokens.sum())
        for row in plan.rows.tolist():
            running = self.memory.table.request_ids[row]
            assert running in self.requests
            adapter = self.requests[running].adapter
            assert adapter is None or self.memory.lora.get(adapter.lora_id) is not None, f"{adapter} is not resident"

    def assert_outputs(self) -> None:
        """Whatever ended by itself generated what it must; whatever was cut short generated a beginning of that."""
        for request_id, ended in self.finished.items():
            expected = expected_output(self.requests[request_id], self.sizes.max_model_len)
            out = self.outputs[request_id]
            assert ended.num_output_tokens == len(out), f"{request_id}: {ended} and {out}"
            if ended.reason == "error" or request_id in self.stopped:
                expected = expected[: len(out)]
            assert out == expected, f"{request_id} ({ended.reason}): {out} instead of {expected}"

    def assert_idle(self) -> None:
        """Nothing runs: every unit is free or cached."""
        for name, ledger in self.ledgers().items():
            assert ledger.held == ledger.pinned == ledger.pending == ledger.reserved == 0, f"{name}: {ledger}"
