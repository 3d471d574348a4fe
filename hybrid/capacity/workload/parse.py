"""What a user writes for a workload: --workload, with --context, --output and others beside it. Every error is a
ValueError of one sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tokens import parse_tokens
from .azure import read_azure
from .generate import Pattern, Shape, generate, with_adapters, with_priorities
from .lengths import Lengths, observed, parse_distribution
from .mooncake import read_mooncake
from .requests_file import MAX_PRIORITY, MAX_RANK, read_requests
from .segments import MAX_LENGTH
from .trace_file import whole
from .workload import Workload

SYNTAX = (
    "poisson, steady, bursts:cv=3, chat:turns=5,system=1k,think=10, azure:FILE, mooncake:FILE, requests:FILE, "
    "or a file that ends in .csv (azure) or .jsonl (requests)"
)
KEYS = {
    "poisson": frozenset[str](),
    "steady": frozenset[str](),
    "bursts": frozenset({"cv"}),
    "chat": frozenset({"turns", "system", "think", "cv"}),
}
DEFAULT_REQUESTS = 1000
LIMITS = {
    "shared_prefix": MAX_LENGTH,
    "images": 1000,
    "image_tokens": MAX_LENGTH,
    "adapters": 100_000,
    "seed": 2**63 - 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the other options of the command say. Raises ValueError for what can never be right.

    context: tokens of a prompt, of which shared_prefix are the same for all; in a chat of each message. output: of an
    answer. Lengths are as in lengths.SYNTAX. These, and images, count for what is drawn; a trace has its own. A chat's
    own `system` replaces shared_prefix.
    rate: requests per second; None: a trace's own, 1 for what is drawn. num_requests None: all of a trace,
    DEFAULT_REQUESTS drawn ones. image_tokens: of one image of the model, 0 where it takes none.
    adapters: how many; sessions get them by Zipf's law of exponent `zipf`, ranks from the start again where there are
    more adapters; a trace that names adapters keeps its own. priorities: each as likely; they replace a trace's.
    """

    context: str = "512"
    output: str = "128"
    shared_prefix: int = 0
    images: int = 0
    image_tokens: int = 0
    adapters: int = 0
    ranks: Sequence[int] = (16,)
    zipf: float = 1.0
    priorities: Sequence[int] = ()
    rate: float | None = None
    num_requests: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be 0 to {most:,}, got {getattr(self, name)}")
        if not self.ranks or not 1 <= min(self.ranks) <= max(self.ranks) <= MAX_RANK:
            raise ValueError(f"ranks must be 1 to {MAX_RANK:,}, got {tuple(self.ranks)}")
        if not 0 <= self.zipf <= 100:
            raise ValueError(f"zipf must be an exponent from 0 to 100, got {self.zipf}")
        for priority in self.priorities:
            whole("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.images and not self.image_tokens:
            raise ValueError(f"images {self.images}: the model takes none")


def parse_workload(text: str, given: Surroundings) -> Workload:
    """text: as in SYNTAX. Raises ValueError for other text, for files that cannot be read, and for a rate of none."""
    kind, _, rest = text.strip().partition(":")
    workload = _drawn(text, kind, rest, given) if kind in KEYS else _recorded(text, given)
    if given.adapters and not workload.adapters:
        workload = with_adapters(workload, given.adapters, ranks=given.ranks, zipf=given.zipf, seed=given.seed)
    if given.priorities:
        workload = with_priorities(workload, given.priorities, seed=given.seed)
    return workload


def parse_lengths(name: str, text: str) -> Lengths:
    """name: "context" or "output", the option's. Also `trace:FILE`: that column of a trace, written as --workload.
    Raises ValueError."""
    if not text.strip().startswith("trace:"):
        return parse_distribution(name, text)
    file = text.strip().removeprefix("trace:")
    if not file:
        raise ValueError(f"{name} must be such as trace:FILE, got {text!r}")
    trace = _read(file, Surroundings())
    return observed(text, trace.output_lengths if name == "output" else trace.prompt_lengths)


def _drawn(text: str, kind: str, rest: str, given: Surroundings) -> Workload:
    options = _options(text, kind, rest)
    cv = {"steady": 0.0, "bursts": 3.0}.get(kind, 1.0)
    if "cv" in options:
        cv = _number(text, "cv", options["cv"], 0, 10)
    is_chat = kind == "chat"
    system = parse_tokens("system", options["system"]) if "system" in options else given.shared_prefix
    if system > MAX_LENGTH:
        raise ValueError(f"system must be at most {MAX_LENGTH:,} tokens, got {options['system']!r}")
    if not is_chat and ":" not in given.context:
        tokens = parse_tokens("context", given.context)
        if 0 < tokens <= system:
            raise ValueError(f"shared_prefix {system} leaves nothing of a context of {tokens} tokens")
    shape = Shape(
        message=_own_part(parse_lengths("context", given.context), 0 if is_chat else given.shared_prefix),
        answer=parse_lengths("output", given.output),
        turns=parse_distribution("turns", options.get("turns", "5" if is_chat else "1")),
        system=system,
        images=given.images,
        image_tokens=given.image_tokens,
        think=_number(text, "think", options.get("think", "10"), 0, 1e6) if is_chat else 0.0,
    )
    return generate(
        text.strip(),
        shape,
        Pattern(cv=cv),
        rate=1.0 if given.rate is None else given.rate,
        num_requests=DEFAULT_REQUESTS if given.num_requests is None else given.num_requests,
        seed=given.seed,
    )


def _own_part(lengths: Lengths, shared: int) -> Lengths:
    """What is left of each length behind the shared beginning, at least one token."""
    return Lengths(lengths.text, lambda rng, count: lengths.sampler(rng, count) - shared) if shared else lengths


def _options(text: str, kind: str, rest: str) -> dict[str, str]:
    options = {}
    for part in rest.split(",") if rest else ():
        name, separator, value = part.strip().partition("=")
        if not separator or name not in KEYS[kind] or name in options:
            names = ", ".join(sorted(KEYS[kind])) or "nothing"
            raise ValueError(f"workload {kind!r} takes {names}, each once as name=value, got {text!r}")
        options[name] = value
    return options


def _number(text: str, name: str, value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {value!r} in {text!r}")
    return number


def _recorded(text: str, given: Surroundings) -> Workload:
    workload = _read(text.strip(), given)
    if given.num_requests is not None:
        workload = workload.first(given.num_requests)
    return workload if given.rate is None else workload.scaled(given.rate)


def _read(text: str, given: Surroundings) -> Workload:
    def requests(path: Path) -> Workload:
        return read_requests(path, image_tokens=given.image_tokens, rank=given.ranks[0])

    formats: dict[str, Callable[[Path], Workload]] = {
        "azure": read_azure,
        "mooncake": read_mooncake,
        "requests": requests,
    }
    kind, separator, file = text.partition(":")
    if separator and kind in formats and file:
        return formats[kind](Path(file))
    for suffix, read in ((".csv", read_azure), (".jsonl", requests)):
        if text.removesuffix(".gz").endswith(suffix):
            return read(Path(text))
    raise ValueError(f"workload must be {SYNTAX}; got {text!r}")
