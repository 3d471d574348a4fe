"""A runner that says what it was told, and a tokenizer whose tokens are bytes: engines without a model.

ScriptedRunner's token at position p of a request depends on p alone, so retractions and late results change nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hybrid.adapters.store import AdapterStore
from hybrid.encoders.inputs import EncoderInput
from hybrid.engine import Engine
from hybrid.frontend.prompt import Prompt
from hybrid.grammar.backend import Masks
from hybrid.models.image_positions import ImagePositions
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.runner.launched import RunnerOutput
from hybrid.runner.sampler import TokenLogprobs
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.scheduler import Scheduler

EOS = 256
SPECIAL = 257


class ByteTokenizer:
    """Token b < 256 is the byte b; the others are special."""

    special_token_ids = frozenset({EOS, SPECIAL})

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        names = {EOS: b"<eos>", SPECIAL: b"<special>"}
        data = b"".join(
            bytes([t]) if t < 256 else b"" if skip_special_tokens else names[t] for t in (int(t) for t in token_ids)
        )
        return data.decode("utf-8", errors="replace")


@dataclass(slots=True)
class _Row:
    request_id: str
    num_prompt_tokens: int


@dataclass
class ScriptedRunner:
    """`scripts[request_id]` are the tokens of its output, then EOS for ever. `broken`: step ids that raise."""

    scripts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    broken: dict[int, BaseException] = field(default_factory=dict)
    always_broken: bool = False
    requests: dict[str, SamplingParams] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    rows: dict[int, _Row] = field(default_factory=dict)

    def add_request(
        self,
        request_id: str,
        params: SamplingParams,
        images: Mapping[str, EncoderInput] | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        image_positions: ImagePositions | None = None,
    ) -> None:
        if SPECIAL + 1 in params.stop_tokens:
            raise ValueError("no such token")
        assert request_id not in self.requests
        self.requests[request_id] = params
        self.seeds[request_id] = seed

    def remove_request(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        self.plans.append(plan)
        for new in plan.new_rows:
            assert new.request_id in self.requests
            self.rows[new.row] = _Row(new.request_id, new.num_prompt_tokens)
        if plan.step_id in self.broken:
            raise self.broken[plan.step_id]
        if self.always_broken:
            raise RuntimeError("the device is on fire")
        tokens, logprobs = [], []
        ends = (plan.num_computed_tokens + plan.num_scheduled_tokens)[plan.samples].tolist()
        for row_id, end in zip(plan.rows[plan.samples].tolist(), ends):
            row = self.rows[row_id]
            script = self.scripts.get(row.request_id, ())
            index = end - row.num_prompt_tokens
            token = script[index] if index < len(script) else EOS
            tokens.append(token)
            params = self.requests.get(row.request_id)
            entry = TokenLogprobs(
                token, -0.5, 2, np.array([7, token], dtype=np.int32), np.array([-0.1, -0.5], dtype=np.float32)
            )
            logprobs.append((entry,) if params is not None and params.logprobs is not None else None)
        result = StepResult.one_each(plan.step_id, np.array(tokens, dtype=np.int32))
        return lambda: RunnerOutput(result, tuple(logprobs))


def scripted_engine(
    runner: ScriptedRunner,
    *,
    max_plans_in_flight: int = 1,
    num_full_blocks: int = 64,
    adapters: AdapterStore | None = None,
) -> Engine:
    """An engine over full attention and recurrent state, 4 rows, blocks of 4 tokens, contexts of 64, 2 rank units."""
    config = SchedulerConfig(max_num_batched_tokens=16, max_plans_in_flight=max_plans_in_flight)
    sizes = PoolSizes(
        num_rows=4,
        num_full_blocks=num_full_blocks,
        num_window_blocks=0,
        num_state_slots=16,
        encoder_tokens=0,
        lora_units=2,
        block_size=4,
        sliding_window=0,
        max_model_len=64,
        lookahead=max_plans_in_flight - 1,
    )
    scheduler = Scheduler(config, sizes, Kinds(full=True, window=False, state=True), clock=lambda: 0.0)
    return Engine(scheduler, runner, ByteTokenizer(), (EOS,), max_plans_in_flight, adapters=adapters)


def prompt(text: str) -> Prompt:
    """A prompt of bytes."""
    return Prompt(text, np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32))
