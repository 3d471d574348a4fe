"""ExecutionTime: how long a runner takes for one step, from coefficients. Knows no engine and no file.

Coefficients are seconds, none is negative.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .step_work import StepWork
from .tally import Tally, Window

# What the execution of a step is made of, beside the curves: a "with_" counts once for a step that has any. And, for
# each window, what attention does.
TERMS = (
    "with_decodes", "decode", "with_chunks", "chunk", "chunk_token", "chunk_block", "mixed", "new_row",
    "with_snapshots", "snapshot", "with_state_copies", "state_copy", "with_block_copies", "block_copy",
    "with_images", "image_token", "adapter", "adapted_unit", "loaded_unit",
    "new_num_tokens", "new_num_sampled",
)  # fmt: skip
WINDOW_TERMS = ("decode_key", "chunk_pair", "chunk_key")
MOST_SECONDS = 1e6  # of one coefficient; times of a simulation stay numbers


@dataclass(frozen=True, slots=True)
class Curve:
    """Piecewise linear through (sizes[i], seconds[i]), from the origin where the first size is above 0; beyond the last
    size as between the last two. Raises ValueError unless sizes grow."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds) or not self.sizes:
            raise ValueError(f"a curve needs as many sizes as seconds, got {len(self.sizes)} and {len(self.seconds)}")
        if any(a >= b for a, b in zip((0, *self.sizes), self.sizes)):
            raise ValueError(f"sizes of a curve must grow from 1 on, got {self.sizes}")
        for value in self.seconds:
            _check("a curve", value)

    def __call__(self, size: int) -> float:
        return sum(self.seconds[index] * weight for index, weight in interpolation(self.sizes, size))


def interpolation(sizes: tuple[int, ...], size: int) -> tuple[tuple[int, float], ...]:
    """(index, weight) of the points between which `size` lies: the value of a Curve is the sum of their products."""
    if size <= sizes[0] or len(sizes) == 1:
        return ((0, size / sizes[0]),)
    right = min(bisect_right(sizes, size), len(sizes) - 1)
    share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    if share > 1:  # beyond the last: in proportion, so that no weight is negative
        return ((right, size / sizes[right]),)
    return ((right - 1, 1 - share), (right, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTime:
    """tokens: curve over the tokens of a step; logits: over its sampled rows. terms: by name in TERMS; attention: of
    each window, by name in WINDOW_TERMS. Raises ValueError for unknown names and negative coefficients."""

    tokens: Curve
    logits: Curve
    terms: Mapping[str, float]
    windows: tuple[Window, ...]
    attention: tuple[Mapping[str, float], ...]  # one for each of `windows`
    _vector: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.attention) != len(self.windows):
            raise ValueError(
                f"{len(self.windows)} windows need as many entries of attention, got {len(self.attention)}"
            )
        check_coefficients("terms", self.terms, TERMS)
        for entry in self.attention:
            check_coefficients("attention", entry, WINDOW_TERMS)
        vector = [self.terms[name] for name in TERMS]
        vector += [entry[name] for entry in self.attention for name in WINDOW_TERMS]
        object.__setattr__(self, "_vector", tuple(vector))

    def scaled(self, factor: float) -> "ExecutionTime":
        """All of it takes `factor` times as long."""

        def longer(curve: Curve) -> Curve:
            return replace(curve, seconds=tuple(factor * value for value in curve.seconds))

        return replace(
            self,
            tokens=longer(self.tokens),
            logits=longer(self.logits),
            terms={name: factor * value for name, value in self.terms.items()},
            attention=tuple({name: factor * value for name, value in entry.items()} for entry in self.attention),
        )

    def seconds(self, work: StepWork) -> float:
        """Of one execution."""
        tally = Tally.of(work, self.windows)
        total = 0.0
        for coefficient, amount in zip(self._vector, amounts(work, tally)):
            if amount:
                total += coefficient * amount
        if tally.num_tokens:
            total += self.tokens(tally.num_tokens)
        if work.num_sampled:
            total += self.logits(work.num_sampled)
        return total


def amounts(work: StepWork, tally: Tally) -> tuple[float, ...]:
    """How much of each of TERMS, then for each window of WINDOW_TERMS, is in a step."""
    decodes, chunks = tally.num_decodes, tally.num_chunks
    blocks = work.full_copies + work.window_copies
    embeddings = sum(work.image_tokens) if work.image_tokens else 0
    first: tuple[float, ...] = (
        decodes > 0,
        decodes,
        chunks > 0,
        chunks,
        tally.num_tokens - decodes,
        tally.chunk_blocks,
        decodes > 0 and chunks > 0,
        work.new_rows,
        work.snapshots > 0,
        work.snapshots,
        work.state_copies > 0,
        work.state_copies,
        blocks > 0,
        blocks,
        embeddings > 0,
        embeddings,
        len(work.adapted),
        sum(adapted.num_tokens * adapted.units for adapted in work.adapted) if work.adapted else 0,
        work.loaded_units,
        work.new_num_tokens,
        work.new_num_sampled,
    )
    if not chunks:
        return first + tuple(amount for keys in tally.decode_keys for amount in (keys, 0, 0))
    return first + tuple(
        amount for triple in zip(tally.decode_keys, tally.chunk_pairs, tally.chunk_keys) for amount in triple
    )


def check_coefficients(what: str, found: Mapping[str, float], names: tuple[str, ...]) -> None:
    """Raises ValueError unless there is a number of seconds for each of the names, and no other."""
    if set(found) != set(names):
        raise ValueError(f"{what} must have exactly {', '.join(names)}, got {', '.join(sorted(found))}")
    for name, value in found.items():
        _check(f"{what}.{name}", value)


def _check(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise ValueError(f"{name} must be a number of seconds from 0 to {MOST_SECONDS:g}, got {value!r}")
