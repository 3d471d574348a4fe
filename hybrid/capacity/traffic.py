"""Traffic: requests of many lengths, from what a user says about prompts and answers. Knows no pools."""

from dataclasses import dataclass, replace

import numpy as np

from hybrid.pools.ledger import Ints

from .workload.parse import Surroundings, parse_lengths, parse_workload

NUM_DRAWN = 10_000
TRACE = "trace:"


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Tokens of requests that are equally likely: prompts, images included [n], answers [n], permitted answers
    (`max_tokens`) [n]. left_out: how many more there would be that no request may be as long as."""

    prompts: Ints
    outputs: Ints
    permitted: Ints
    left_out: int = 0

    @property
    def longest(self) -> int:
        """Prompt and permitted answer together."""
        return int((self.prompts + self.permitted).max())

    def document(self) -> dict[str, float]:
        """Means, for JSON."""
        means = {"context": self.prompts.mean(), "output": self.outputs.mean(), "max_tokens": self.permitted.mean()}
        numbers = {"requests": len(self.prompts), "left_out": self.left_out}
        return numbers | {f"mean_{name}": round(float(mean), 1) for name, mean in means.items()}

    def within(self, limit: int) -> "Traffic":
        """Those that have room for their answers in `limit` tokens; more than that is not permitted. Raises ValueError
        where none has."""
        fits = self.prompts + self.outputs <= limit
        if not fits.any():
            raise ValueError(f"none of these requests fits into the model's limit of {limit} tokens")
        prompts, outputs = self.prompts[fits], self.outputs[fits]
        permitted = np.minimum(self.permitted[fits], limit - prompts)
        return replace(self, prompts=prompts, outputs=outputs, permitted=permitted, left_out=int((~fits).sum()))


def parse_traffic(context: str, output: str, extra: int, shared: int, max_tokens: int | None) -> Traffic:
    """context, output: numbers, distributions, or trace:FILE; the same file for both keeps its pairs. extra: tokens of
    images on top of a prompt. shared: with which all begin; shorter prompts are one token longer than that.
    max_tokens: at least so many are permitted. Raises ValueError."""
    if context == output and context.startswith(TRACE):
        trace = parse_workload(context.removeprefix(TRACE), Surroundings())
        prompts, outputs = trace.prompt_lengths, trace.output_lengths
    else:
        rng = np.random.default_rng(0)
        drawn = (parse_lengths(name, text) for name, text in (("context", context), ("output", output)))
        prompts, outputs = (lengths.draw(NUM_DRAWN, rng) for lengths in drawn)
    prompts = np.maximum(prompts, shared + 1) + extra
    outputs = np.maximum(outputs, 1)
    return Traffic(prompts, outputs, np.maximum(outputs, max_tokens or 0))
