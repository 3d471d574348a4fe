"""Random engines and random traffic, for the property test and the soak: whoever calls brings the dice.

Everything is drawn through `choose(options)`, so that hypothesis can shrink what `random.Random` would only repeat.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

from hybrid.adapters.adapter import Adapter
from hybrid.pools.sizing import blocks_for
from hybrid.pools.window import window_quota
from hybrid.scheduler.config import Composition, SchedulerConfig, SchedulingPolicy
from hybrid.scheduler.request import Gate, GateStatus, ImageInput
from tests.scheduler.harness import MIXTURES, Harness, tokens

Choose = Callable[[Sequence[Any]], Any]

ADAPTERS = (*[None] * 7, Adapter("x", 1, 8), Adapter("y", 2, 12), Adapter("z", 3, 16))
SECONDS_PER_OPERATION = 0.5
GATE_SECONDS = 20.0
WHY_ERROR = ("the device is gone", "compiles badly", "deadline")  # the only errors that traffic can cause


def draw_harness(choose: Choose, clock: Callable[[], float]) -> Harness:
    """An engine with barely enough or plenty of everything: one request of max_model_len always fits."""
    kinds = MIXTURES[choose(tuple(MIXTURES))]
    drafts = choose((0, 0, 0, 2, 3))
    config = SchedulerConfig(
        max_num_batched_tokens=choose((8, 16, 33, 64, 256)),
        scheduling_policy=choose(get_args(SchedulingPolicy)),
        composition=choose(get_args(Composition)),
        max_plans_in_flight=choose((1, 1, 2, 3)),
        long_prefill_token_threshold=choose((0, 0, 5, 20)),
        max_num_encoder_tokens=choose((None, 16, 40)),
        disable_chunked_mm_input=choose((False, False, True)),
        num_draft_tokens=drafts,
        max_skips=choose((0, 3, 64)),
        max_scan=choose((2, 256)),
        max_snapshots_per_prompt=choose((0, 1, 8)),
        max_step_failures=choose((1, 3)),
        ageing_seconds=choose((0.0, 5.0, 60.0)),
        long_queue=choose((0, 4, 128)),
        prefill_delay_tokens=choose((1, 64, 512)),
        min_shared_tokens=choose((1, 4, 16)),
        initial_output_ratio=choose((0.0, 0.5, 1.0)),
        force_retraction_every=choose((0, 0, 3, 7)),
    )
    block_size, width = choose((1, 2, 3, 4, 8, 16)), choose((1, 2, 5, 7, 16, 24))
    longest = choose((40, 64, 100))
    lookahead = max(config.max_plans_in_flight - 1, drafts)
    blocks, quota = blocks_for(longest, block_size), window_quota(width, block_size, lookahead, longest)
    return Harness(
        config=config,
        kinds=kinds,
        enable_prefix_caching=choose((True, True, True, False)),
        clock=clock,
        num_rows=choose((1, 2, 4, 8)),
        block_size=block_size,
        sliding_window=width if kinds.window else 0,
        max_model_len=longest,
        num_full_blocks=blocks + choose((0, 1, blocks, 4 * blocks, 8 * blocks)),
        num_window_blocks=quota + choose((0, 1, 4 * quota, 4 * blocks, 8 * blocks)),
        num_state_slots=choose((1, 2, 4, 12, 24)),
        encoder_tokens=choose((16, 20, 40)),
        lora_units=choose((2, 4)),
    )


class Traffic:
    """Operations on one harness. `now` is the scheduler's clock; it moves with the operations."""

    def __init__(self, choose: Choose) -> None:
        self.now = 0.0
        self.choose = choose
        self.harness = draw_harness(choose, lambda: self.now)
        self.gates: dict[str, GateStatus] = {}
        self._serial = 0

    def tick(self) -> None:
        self.now += SECONDS_PER_OPERATION

    def add(self) -> None:
        """A request that shares its beginning with others, perhaps with images, adapter, salt, hints, and a gate."""
        choose, harness = self.choose, self.harness
        name, self._serial = f"r{self._serial}", self._serial + 1
        max_tokens = choose((1, 2, 4, 8, 30))
        more: dict[str, Any] = {"min_tokens": choose((0, 0, min(3, max_tokens)))}
        prompt = self._next_turn(more) if choose((False, False, True)) else []
        if not prompt:
            prompt = self._prompt()
            more["adapter"] = choose(ADAPTERS)
            more["cache_salt"] = choose(("",) * 9 + ("salt",))
            if choose((False, False, False, True)):
                more["images"] = self._images(len(prompt))
        if choose((False, True)):
            more["resume_hints"] = tuple(sorted({choose(range(1, len(prompt) + 1)) for _ in range(2)}))
        if choose((False,) * 9 + (True,)):
            self.gates[name] = GateStatus.PENDING
            deadline = choose((None, self.now + GATE_SECONDS))
            more["gates"] = (Gate("grammar", lambda: self.gates[name], lambda: "compiles badly", deadline),)
        try:
            harness.add(
                name,
                prompt,
                max_tokens,
                priority=choose((0, 0, 1, 2)),
                enable_prefix_caching=choose((True,) * 9 + (False,)),
                **more,
            )
        except ValueError:
            too_large = more.get("images") or harness.sizes.lora_units < 2
            assert too_large, "only an image or an adapter may be too large for this engine"
        harness.check()

    def _prompt(self) -> list[int]:
        """One of two texts up to some point, then something else, alike for some requests."""
        length = self.choose(range(1, self.harness.sizes.max_model_len))
        shared = self.choose((length, length, self.choose(range(length + 1))))
        prompt = tokens(shared, seed=self.choose((1, 1, 2)))
        prompt += [1 + self.choose((0, 1)) for _ in range(min(2, length - shared))]
        return prompt + tokens(length - len(prompt), seed=self.choose((3, 4)))

    def _next_turn(self, more: dict[str, Any]) -> list[int]:
        """What an ended request was asked and answered, and a few tokens more; [] where there is none, or no room."""
        harness = self.harness
        ended = [name for name in harness.finished if harness.outputs[name]][-6:]
        if not ended:
            return []
        name = self.choose(ended)
        last = harness.requests[name]
        prompt = [*last.prompt_token_ids.tolist(), *harness.outputs[name], *tokens(3, seed=self.choose((5, 6)))]
        more.update(images=last.images, adapter=last.adapter, cache_salt=last.cache_salt)
        return prompt if len(prompt) < harness.sizes.max_model_len else []

    def _images(self, length: int) -> tuple[ImageInput, ...]:
        images: list[ImageInput] = []
        offset = self.choose(range(length))
        while offset < length and len(images) < 3:
            size = self.choose(range(1, min(16, length - offset) + 1))
            images.append(ImageInput(f"{self.choose('abc')}{size}", offset, size))
            offset += size + self.choose((0, 0, 1, 9))
        return tuple(images)

    def unfinished(self) -> list[str]:
        return [name for name in self.harness.requests if name not in self.harness.finished]

    def abort(self) -> None:
        """Any request, wherever it stands; also one that has ended."""
        if self.harness.requests:
            name = self.choose(tuple(self.harness.requests)[-8:])
            was_here = name not in self.harness.finished
            assert self.harness.abort(name) == was_here

    def finish(self) -> None:
        """The caller has found a stop string."""
        if names := self.unfinished():
            self.harness.finish(self.choose(names[:8]))

    def turn_gate(self) -> None:
        if names := [name for name, status in self.gates.items() if status is GateStatus.PENDING]:
            self.gates[self.choose(names)] = self.choose((GateStatus.READY, GateStatus.READY, GateStatus.FAILED))

    def plan(self) -> None:
        self.harness.plan()

    def plan_that_fails(self) -> None:
        self.harness.plan(fails=True)

    def steps(self) -> None:
        """Some steps in a row, each with as many plans ahead as allowed."""
        for _ in range(5):
            while self.harness.plan() is not None:
                pass
            self.commit()

    def commit(self) -> None:
        if self.harness.results:
            self.harness.commit()

    def explain(self) -> None:
        """Asking changes nothing."""
        before = self.harness.ledgers()
        for name in self.unfinished()[:4]:
            assert name in self.harness.scheduler.explain(name)
        assert self.harness.ledgers() == before

    def reset(self) -> None:
        self.harness.scheduler.reset_prefix_cache()
        self.harness.check()

    def drain(self, max_steps: int = 3000) -> None:
        """Every gate opens; everything ends, as it should, and nothing is held."""
        for name, status in self.gates.items():
            if status is GateStatus.PENDING:
                self.gates[name] = GateStatus.READY
        harness = self.harness
        harness.run(max_steps)
        harness.assert_outputs()
        harness.assert_idle()
        assert set(harness.finished) == set(harness.requests)
        for name, ended in harness.finished.items():
            if ended.reason == "error":
                assert ended.error is not None and any(why in ended.error for why in WHY_ERROR), f"{name}: {ended}"


OPERATIONS: tuple[tuple[Callable[[Traffic], None], float], ...] = (
    (Traffic.add, 22),
    (Traffic.plan, 28),
    (Traffic.commit, 20),
    (Traffic.steps, 14),
    (Traffic.abort, 4),
    (Traffic.plan_that_fails, 3),
    (Traffic.finish, 2),
    (Traffic.turn_gate, 3),
    (Traffic.explain, 3),
    (Traffic.reset, 0.3),
)
