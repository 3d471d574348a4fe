"""Grammars: the grammars of an engine's requests: a gate until one is compiled, then masks, token by token.

Matchers advance with committed tokens only, so retraction and recomputation do not touch them. Knows no grammar engine
and no model.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.request import Gate

from .backend import Bitmask, GrammarError, Matcher
from .compiler import Compilation, GrammarCompiler

GATE = "grammar"  # errors begin with it, whenever they show


@dataclass(frozen=True, slots=True)
class Verdict:
    """A request that must end: its output is complete (`error` None), or its grammar cannot go on."""

    request_id: str
    error: str | None


@dataclass(slots=True)
class _Sequence:
    compilation: Compilation
    stop_token_ids: tuple[int, ...]  # these end the request
    ignored_token_ids: tuple[int, ...]  # these end texts, but not this one
    min_tokens: int
    num_tokens: int = 0
    matcher: Matcher | None = None


class StepMasks:
    """The masks of one step, being filled. Call it for the masks, by row id; it waits for them."""

    def __init__(self, future: Future[tuple[dict[int, Bitmask], tuple[Verdict, ...]]]) -> None:
        self._future = future

    def __call__(self) -> Mapping[int, Bitmask]:
        return self._future.result()[0]

    def verdicts(self) -> tuple[Verdict, ...]:
        """Requests for which there was no token to allow; what is sampled for them is void. Waits."""
        return self._future.result()[1]


class Grammars:
    """Driven by the engine's thread; masks are filled in a thread of its own, while the model runs."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """vocab_size: of the model."""
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._sequences: dict[str, _Sequence] = {}
        self._filler = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def __len__(self) -> int:
        """Requests with a grammar."""
        return len(self._sequences)

    def add(self, request_id: str, params: SamplingParams) -> Gate:
        """Mutates: the request's grammar will be compiled; until then the gate is shut. Raises ValueError."""
        assert params.structured_outputs is not None
        try:
            compilation = self._compiler.submit(params.structured_outputs)
        except ValueError as error:
            raise ValueError(f"{GATE}: {error}") from None
        stops = {*(() if params.ignore_eos else self._eos_token_ids), *params.stop_tokens}
        ignored = set(self._eos_token_ids) - stops
        self._sequences[request_id] = _Sequence(compilation, tuple(stops), tuple(ignored), params.min_tokens)
        return Gate(GATE, compilation.status, compilation.error)

    def fill(self, rows: Iterable[tuple[int, str]]) -> StepMasks:
        """Mutates: begins with the masks for the next token of these (row id, request id). One step at a time."""
        jobs = [(row, request_id, self._sequences[request_id]) for row, request_id in rows]
        return StepMasks(self._filler.submit(self._fill, jobs))

    def advance(self, request_id: str, token_ids: Sequence[int]) -> Verdict | None:
        """Mutates: these tokens were committed, none of which ended the request. None: it goes on."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        assert sequence.matcher is not None, f"request {request_id!r} got a token without a mask"
        sequence.num_tokens += len(token_ids)
        try:
            sequence.matcher.consume(token_ids)
        except GrammarError as error:
            return Verdict(request_id, f"{GATE}: {error}")
        return Verdict(request_id, None) if sequence.matcher.is_stopped else None

    def forget(self, request_id: str) -> None:
        """Mutates: the request ended. Unknown ids: nothing."""
        self._sequences.pop(request_id, None)

    def _fill(self, jobs: list[tuple[int, str, _Sequence]]) -> tuple[dict[int, Bitmask], tuple[Verdict, ...]]:
        masks, verdicts = {}, []
        for row, request_id, sequence in jobs:
            mask: Bitmask = np.zeros(-(-self._vocab_size // 32), dtype=np.int32)
            try:
                if self._fill_one(mask, sequence):
                    verdicts.append(Verdict(request_id, None))
                    mask[:] = -1  # something must be sampled
            except BaseException as error:  # of whatever kind, also a panic: the others have their own matchers
                verdicts.append(Verdict(request_id, f"{GATE}: {error}"))
                mask[:] = -1
            masks[row] = mask
        return masks, tuple(verdicts)

    def _fill_one(self, mask: Bitmask, sequence: _Sequence) -> bool:
        """Mutates `mask`. Returns whether the output is complete: nothing may come but what this request may not end
        with. Raises GrammarError if nothing may come and it is not complete."""
        if sequence.matcher is None:
            sequence.matcher = sequence.compilation.grammar().matcher()
        matcher = sequence.matcher
        matcher.fill_bitmask(mask)
        complete = matcher.is_accepting
        if complete:
            _set(mask, sequence.stop_token_ids, True)
            _set(mask, sequence.ignored_token_ids, False)
        may = mask
        if sequence.num_tokens < sequence.min_tokens:  # stop tokens are forbidden by the sampler
            may = mask.copy()
            _set(may, sequence.stop_token_ids, False)
        if np.unpackbits(may.view(np.uint8), count=self._vocab_size, bitorder="little").any():
            return False
        if not complete:
            raise GrammarError("the model's vocabulary has no token that the grammar allows here")
        return True


def _set(mask: Bitmask, token_ids: Sequence[int], value: bool) -> None:
    words = mask.view(np.uint32)
    for token_id in token_ids:
        bit = np.uint32(1 << token_id % 32)
        words[token_id // 32] = words[token_id // 32] | bit if value else words[token_id // 32] & ~bit
