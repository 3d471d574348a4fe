"""Hostile traffic through a whole engine: random settings, pools as small as one request allows, random aborts, steps
that fail. Knows what an undisturbed engine gave; whatever happens, every request must give the same.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybrid import LLM, SamplingParams
from hybrid.engine import Runner
from hybrid.frontend.generation import Update
from hybrid.grammar.backend import Masks
from hybrid.runner.launched import RunnerOutput
from hybrid.scheduler.plan import StepPlan

CONTEXT = 48  # tokens of prompt and output
STEPS = 3000  # more than any traffic here needs

Tokens = tuple[int, ...]


class FailingRunner:
    """A runner some of whose steps fail, before they are launched or after they were computed."""

    def __init__(self, inner: Runner, fails: Callable[[], str | None]) -> None:
        self.inner = inner
        self.fails = fails
        self.failures = 0
        self.add_request = inner.add_request
        self.remove_request = inner.remove_request

    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        when = self.fails()
        if when is None:
            return self.inner.launch(plan, grammar)
        self.failures += 1
        error = RuntimeError(f"the device was lost {when} the step")
        if when == "before":
            raise error
        result = self.inner.launch(plan, grammar)

        def lost() -> RunnerOutput:
            result()
            raise error

        return lost


class Interrupts:
    """A context within which the n-th step is interrupted as Ctrl-C does where no handler defers it."""

    def __init__(self, llm: LLM, step: int) -> None:
        self._engine, self._runner = llm.engine, llm.engine._runner
        self._left = step

    def __enter__(self) -> None:
        self._engine._runner = FailingRunner(self._runner, self._press)

    def __exit__(self, *error: object) -> None:
        self._engine._runner = self._runner

    def _press(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request and what an undisturbed engine says to it."""

    prompt: list[int]
    params: SamplingParams
    priority: int
    token_ids: Tokens
    text: str
    reason: str
    stop_reason: int | str | None


@dataclass(slots=True)
class Got:
    """What came of one request so far."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    last: Update | None = None

    def add(self, update: Update) -> None:
        assert self.last is None, "an update after the last"
        self.token_ids += update.token_ids
        self.text += update.text
        if update.finish_reason is not None:
            self.last = update


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Token i is the word `wi`."""
    vocab = {f"w{index}": index for index in range(vocab_size)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole: dict[str, Any] = {
        "version": "1.0",
        **parts,
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": model,
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(whole))


def undisturbed(folder: Path, tokenizer: Path) -> LLM:
    return LLM(
        folder, tokenizer=tokenizer, dtype="float32", memory="16MiB", max_model_len=CONTEXT, max_num_seqs=1,
        block_size=8, enable_prefix_caching=False,
    )  # fmt: skip


def wanted(llm: LLM, vocab_size: int, number: int, seed: int) -> list[Wanted]:
    """Requests of many lengths, some with a common beginning, some with stops that occur in what they say."""
    rng = np.random.default_rng(seed)
    common = rng.integers(2, vocab_size, 40).tolist()
    made = []
    for _ in range(number):
        length = int(rng.integers(1, CONTEXT if rng.random() < 0.5 else 8))
        shared = int(rng.integers(0, min(length, len(common)) + 1)) if rng.random() < 0.6 else 0
        prompt = [*common[:shared], *rng.integers(2, vocab_size, length - shared).tolist()]
        most = int(rng.integers(1, CONTEXT - length + 1)) if rng.random() < 0.7 else None
        plain = SamplingParams(temperature=0, max_tokens=most, ignore_eos=rng.random() < 0.7)
        said = list(llm.generate({"prompt_token_ids": prompt}, plain, use_tqdm=False)[0].outputs[0].token_ids)
        stops: dict[str, Any] = {}
        at = int(rng.integers(len(said) // 2, len(said)))
        match rng.integers(0, 4):
            case 0:
                stops = {"stop_token_ids": [said[at]]}
            case 1:
                stops = {"stop": [f"w{said[at]}"]}
            case 2:
                stops = {
                    "stop": [" ".join(f"w{token}" for token in said[at : at + 2])],
                    "include_stop_str_in_output": True,
                }
        params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=plain.ignore_eos, **stops)
        [answer] = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs
        assert answer.finish_reason is not None
        made.append(
            Wanted(
                prompt=prompt,
                params=params,
                priority=int(rng.integers(0, 3)),
                token_ids=tuple(answer.token_ids),
                text=answer.text,
                reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
            )
        )
    return made


def settings(rng: np.random.Generator) -> dict[str, Any]:
    """Random ones. Attention's pools hold one request, and hardly two."""
    block_size = int(rng.choice([1, 3, 8, 16]))
    max_num_seqs = int(rng.choice([1, 2, 4, 8]))
    blocks = -(-(CONTEXT + 8) // block_size)
    return {
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": int(rng.choice([max_num_seqs, max_num_seqs + 5, 64])),
        "long_prefill_token_threshold": int(rng.choice([0, *range(1, 8)])),
        "max_plans_in_flight": int(rng.integers(1, 4)),
        "enable_prefix_caching": bool(rng.random() < 0.7),
        "scheduling_policy": str(rng.choice(["fcfs", "priority", "lpm", "dfs-weight", "lof"])),
        "composition": str(rng.choice(["decode-first", "prefill-first"])),
        "num_full_blocks": blocks + int(rng.integers(0, blocks // 2 + 1)),
        "num_state_slots": max_num_seqs + int(rng.integers(0, 3)),
        "initial_output_ratio": 0.0,
        "min_shared_tokens": int(rng.choice([1, 16])),
        "max_step_failures": 1000,  # whoever was in a failing step is not to blame here
    }


def disturb(
    llm: LLM, requests: Sequence[Wanted], rng: np.random.Generator, aborts: float = 0.02, failures: float = 0.05
) -> int:
    """All requests at random times, to their end, with every promise checked. Returns how many steps failed.

    aborts, failures: how likely one is, per step.
    """
    engine, processor = llm.engine, llm._processor
    runner = FailingRunner(
        engine._runner, lambda: str(rng.choice(["before", "after"])) if rng.random() < failures else None
    )
    engine._runner = runner
    got = {str(index): Got() for index in range(len(requests))}
    waiting = list(rng.permutation(len(requests)))
    aborted = set()
    for _ in range(STEPS):
        while waiting and rng.random() < 0.5:
            index = int(waiting.pop())
            request = requests[index]
            prompt = processor.process({"prompt_token_ids": request.prompt})
            most = processor.max_tokens(prompt, request.params)
            engine.add_request(str(index), prompt, request.params, max_tokens=most, priority=request.priority)
        if rng.random() < aborts:
            victim = str(rng.integers(0, len(requests)))
            if engine.abort(victim):
                aborted.add(victim)
        for update in engine.step():
            got[update.request_id].add(update)
        engine.scheduler.check()
        if not waiting and not engine.is_busy:
            break
    engine._runner = runner.inner
    assert not waiting, "some requests never ran"
    assert_idle(llm)
    for name, request in zip(got, requests):
        check(request, got[name], name in aborted)
    return runner.failures


def assert_idle(llm: LLM) -> None:
    """Nothing is under way, and every unit is free or cached."""
    assert not llm.engine.is_busy
    llm.engine.scheduler.check()
    for pool, ledger in llm.stats().ledgers.items():
        assert (ledger.reserved, ledger.held, ledger.pinned, ledger.pending) == (0, 0, 0, 0), pool


def check(request: Wanted, got: Got, aborted: bool) -> None:
    last = got.last
    assert last is not None and last.error is None, last
    if aborted and last.finish_reason == "abort":
        assert request.token_ids[: len(got.token_ids)] == tuple(got.token_ids)
        return
    assert (tuple(got.token_ids), got.text) == (request.token_ids, request.text)
    assert (last.finish_reason, last.stop_reason) == (request.reason, request.stop_reason)
