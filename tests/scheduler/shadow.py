"""ShadowRunner: a runner without a model that checks what a model would read.

Its "KV cache" holds, per block and offset, which token under which history was written there; its recurrent states hold the
hash of exactly the tokens they have seen. A chunk that would read a wrong, stale or missing entry raises WrongMemory. The
next token is a function of the whole history, so any mistake also shows in the output.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.outcome import FinishedRequest
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler

VOCABULARY = 50
EOS = 0
MASK = (1 << 61) - 1


class WrongMemory(AssertionError):
    """A chunk would read something that was not written for its tokens."""


def extend(history: int, token: int) -> int:
    """Hash of a history with one token more."""
    return (history * 1_000_003 + token + 7) & MASK


def histories(tokens: list[int], start: int = 0) -> list[int]:
    """out[i]: hash of tokens[:i]."""
    out = [start]
    for token in tokens:
        out.append(extend(out[-1], token))
    return out


def next_token(history: int) -> int:
    """The model: eos about once in 40 tokens."""
    mixed = (history ^ (history >> 17)) * 0x9E3779B97F4A7C15 & MASK
    return EOS if mixed % 41 == 0 else 1 + (mixed >> 7) % (VOCABULARY - 1)


def expected_output(prompt: list[int], max_tokens: int, stop: tuple[int, ...] = (EOS,), min_tokens: int = 0) -> list[int]:
    """What any correct engine generates."""
    history, out = histories(prompt)[-1], []
    while len(out) < max_tokens:
        out.append(next_token(history))
        history = extend(history, out[-1])
        if out[-1] in stop and len(out) >= min_tokens:
            break
    return out


@dataclass
class ShadowRunner:
    """Executes plans in order. `num_drafts`: propose so many tokens; every third proposal is wrong."""

    sizes: PoolSizes
    kinds: Kinds
    num_drafts: int = 0
    full: np.ndarray = field(init=False)
    window: np.ndarray = field(init=False)
    states: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot -> (tokens seen, history)
    encoder: dict[int, tuple[str, int]] = field(default_factory=dict)  # slot -> (image, offset in it)
    rows: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    full_table: dict[tuple[int, int], int] = field(default_factory=dict)
    window_table: dict[tuple[int, int], int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    images: dict[str, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)  # request -> (hash, offset, tokens)
    last_step: int = 0
    num_encoded: int = 0
    proposals: int = 0

    def __post_init__(self) -> None:
        size = self.sizes.block_size
        self.full = np.full((self.sizes.num_full_blocks, size), -1, dtype=np.int64)
        self.window = np.full((self.sizes.num_window_blocks, size), -1, dtype=np.int64)

    def add(self, new: NewRequest) -> None:
        self.images[new.request_id] = tuple((i.mm_hash, i.offset, i.num_tokens) for i in new.images)

    def execute(self, plan: StepPlan) -> StepResult:
        assert plan.step_id == self.last_step + 1, "plans are executed in order"
        self.last_step = plan.step_id
        for new in plan.new_rows:
            self.rows[new.row] = new.token_ids.tolist()
            self.slots[new.row] = new.state_slot
            self.names[new.row] = new.request_id
            for table in (self.full_table, self.window_table):
                for key in [key for key in table if key[0] == new.row]:
                    del table[key]
        for delta, table in ((plan.full_blocks, self.full_table), (plan.window_blocks, self.window_table)):
            for row, index, block in zip(delta.rows.tolist(), delta.indices.tolist(), delta.blocks.tolist(), strict=True):
                table[row, index] = block
        for copies, cache in ((plan.full_copies, self.full), (plan.window_copies, self.window)):
            for source, target in copies.tolist():
                cache[target] = cache[source]
        for source, target in plan.state_copies.tolist():
            self.states[target] = self.states[source]
        for image in plan.encode:
            self.num_encoded += 1
            for offset, slot in enumerate(image.slots.tolist()):
                self.encoder[slot] = (image.mm_hash, offset)
        self._check_images(plan)
        sampled: list[list[int]] = []
        drafts: list[list[int]] = []
        used = 0
        for i, row in enumerate(plan.rows.tolist()):
            count, num_drafts = int(plan.num_scheduled_tokens[i]), int(plan.num_draft_tokens[i])
            draft = plan.draft_token_ids[used : used + num_drafts].tolist()
            used += num_drafts
            out = self._compute(plan, row, int(plan.num_computed_tokens[i]), count, draft)
            if plan.samples[i]:
                sampled.append(out)
                drafts.append(self._propose(self.rows[row]) if self.num_drafts else [])
        return result(plan.step_id, sampled, drafts)

    def _compute(self, plan: StepPlan, row: int, start: int, count: int, draft: list[int]) -> list[int]:
        known = self.rows[row]
        tokens = known[: start + count - len(draft)] + draft
        if len(tokens) != start + count:
            raise WrongMemory(f"row {row} computes up to {start + count} but only {len(tokens)} tokens are known")
        history = histories(tokens)
        self._read(self.full, self.full_table, row, history, range(start), self.kinds.full)
        width = self.sizes.sliding_window
        self._read(self.window, self.window_table, row, history, range(max(0, start - width + 1), start), self.kinds.window)
        if self.kinds.state and start > 0:
            seen = self.states.get(self.slots[row])
            if seen != (start, history[start]):
                raise WrongMemory(f"row {row} starts at {start} from the state {seen}")
        for position in range(start, start + count):
            self._write(row, position, history[position + 1])
        accepted = 0
        for offset, token in enumerate(draft):
            if next_token(history[start + count - len(draft) + offset]) != token:
                break
            accepted += 1
        end = start + count - len(draft) + accepted
        if self.kinds.state:
            self.states[self.slots[row]] = (end, history[end])
            for snapshot in plan.snapshots:
                if snapshot.row == row:
                    assert start < snapshot.position <= start + count
                    self.states[snapshot.slot] = (snapshot.position, history[snapshot.position])
        out = draft[:accepted] + [next_token(history[end])]
        if plan.samples[plan.rows.tolist().index(row)]:
            self.rows[row] = tokens[:end] + [out[-1]]
        return out

    def _read(
        self, cache: np.ndarray, table: dict[tuple[int, int], int], row: int, history: list[int], seen: range, kind: bool
    ) -> None:
        if not kind:
            return
        size = self.sizes.block_size
        for position in seen:
            block = table.get((row, position // size))
            there = None if block is None else int(cache[block, position % size])
            if there != history[position + 1]:
                raise WrongMemory(f"row {row} ({self.names[row]}) reads position {position} in block {block}: {there}")

    def _write(self, row: int, position: int, value: int) -> None:
        size = self.sizes.block_size
        if self.kinds.full:
            self.full[self.full_table[row, position // size], position % size] = value
        if self.kinds.window:
            self.window[self.window_table[row, position // size], position % size] = value

    def _check_images(self, plan: StepPlan) -> None:
        """Every placeholder token of the step gets exactly its embedding."""
        given: dict[tuple[int, int], tuple[str, int]] = {}
        for span in plan.image_spans:
            for offset, slot in enumerate(span.slots.tolist()):
                if slot not in self.encoder:
                    raise WrongMemory(f"row {span.row} reads encoder slot {slot} that nothing wrote")
                given[span.row, span.position + offset] = self.encoder[slot]
        wanted: dict[tuple[int, int], tuple[str, int]] = {}
        for i, row in enumerate(plan.rows.tolist()):
            start = int(plan.num_computed_tokens[i])
            end = start + int(plan.num_scheduled_tokens[i])
            for mm_hash, offset, num_tokens in self.images.get(self.names[row], ()):
                for position in range(max(start, offset), min(end, offset + num_tokens)):
                    wanted[row, position] = (mm_hash, position - offset)
        if given != wanted:
            raise WrongMemory(f"step {plan.step_id}: image embeddings {given} instead of {wanted}")

    def _propose(self, tokens: list[int]) -> list[int]:
        history, out = histories(tokens)[-1], []
        for _ in range(self.num_drafts):
            self.proposals += 1
            token = next_token(history) if self.proposals % 3 else VOCABULARY + 1
            out.append(token)
            history = extend(history, token)
        return out


def result(step_id: int, sampled: list[list[int]], drafts: list[list[int]]) -> StepResult:
    """A StepResult from plain lists, one entry per sampling row."""

    def table(lists: list[list[int]]) -> np.ndarray:
        width = max((len(row) for row in lists), default=0)
        out = np.full((len(lists), width), -1, dtype=np.int32)
        for i, row in enumerate(lists):
            out[i, : len(row)] = row
        return out

    return StepResult(
        step_id=step_id,
        sampled_token_ids=table(sampled),
        num_sampled=np.array([len(row) for row in sampled], dtype=np.int64),
        draft_token_ids=table(drafts),
        num_drafts=np.array([len(row) for row in drafts], dtype=np.int64),
    )


class Harness:
    """Scheduler + ShadowRunner + collected outputs; checks every invariant after every step."""

    def __init__(
        self,
        *,
        config: SchedulerConfig | None = None,
        kinds: Kinds = Kinds(full=True, window=False, state=False),
        num_drafts: int = 0,
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
        self.runner = ShadowRunner(self.sizes, kinds, num_drafts)
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, FinishedRequest] = {}
        self.results: list[StepResult] = []

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 16, **more: object) -> NewRequest:
        new = NewRequest(
            request_id=request_id,
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            max_tokens=max_tokens,
            **{"stop_token_ids": (EOS,), **more},  # type: ignore[arg-type]
        )
        self.scheduler.add(new)
        self.runner.add(new)
        self.outputs[request_id] = []
        return new

    def plan(self) -> StepPlan | None:
        """Schedule and execute; the result waits in `results`."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self.results.append(self.runner.execute(plan))
        self.scheduler.check()
        self.collect()
        return plan

    def commit(self) -> None:
        tokens = self.scheduler.commit(self.results.pop(0))
        for i, request_id in enumerate(tokens.request_ids.tolist()):
            self.outputs[request_id] += tokens.token_ids[i, : tokens.num_tokens[i]].tolist()
        self.scheduler.check()
        self.collect()

    def collect(self) -> None:
        for ended in self.scheduler.pop_finished():
            assert ended.request_id not in self.finished, "a request ends once"
            self.finished[ended.request_id] = ended

    def step(self) -> dict[str, int]:
        """One synchronous step: scheduled tokens by request id ({} when nothing could run)."""
        plan = self.plan()
        if plan is None:
            return {}
        counts = scheduled(plan, self.runner)
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

    def why(self) -> str:
        return "; ".join(self.scheduler.explain(name) for name in self.outputs if name not in self.finished)

    def assert_idle(self) -> None:
        """Nothing runs: every unit is free or cached."""
        for name, ledger in self.scheduler.memory.ledgers().items():
            assert ledger.held == ledger.pinned == ledger.pending == ledger.reserved == 0, f"{name}: {ledger}"


def scheduled(plan: StepPlan, runner: ShadowRunner) -> dict[str, int]:
    return {
        runner.names[row]: count
        for row, count in zip(plan.rows.tolist(), plan.num_scheduled_tokens.tolist(), strict=True)
    }
