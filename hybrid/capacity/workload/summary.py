"""Summary: what a workload consists of, in a few figures. Knows workloads; not how they are shown."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .segments import Kind
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a column of numbers."""

    mean: float
    p50: float
    p95: float
    p99: float
    largest: int

    @staticmethod
    def of(values: NDArray[np.int64]) -> "Spread":
        p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
        return Spread(float(values.mean()), p50, p95, p99, int(values.max()))


@dataclass(frozen=True, slots=True)
class Summary:
    """Lengths in tokens, times in seconds.

    duration: between the first and the last request that follows no other one. shared_tokens: tokens of prompts that an
    earlier prompt of the same adapter, or an answer of the same session, begins with: what a cache without limits would
    save. adapters: those in use. requests_with_adapter, images, image_tokens: of all requests, each image as often as a
    prompt brings it.
    """

    name: str
    requests: int
    sessions: int
    mean_rate: float
    duration: float
    prompt: Spread
    output: Spread
    prompt_tokens: int
    shared_tokens: int
    adapters: int
    requests_with_adapter: int
    images: int
    image_tokens: int

    @property
    def shared_share(self) -> float:
        """Of all tokens of prompts."""
        return self.shared_tokens / self.prompt_tokens

    def rows(self) -> list[tuple[str, str]]:
        """Name and figures, for a table; what there is none of is left out."""
        rows = [
            ("requests", f"{self.requests:,}"),
            ("requests/s", f"{self.mean_rate:.4g}"),
            ("seconds", f"{self.duration:,.1f}"),
        ]
        if self.sessions < self.requests:
            rows.insert(1, ("sessions", f"{self.sessions:,}"))
        for name, spread in (("prompt", self.prompt), ("output", self.output)):
            rows.append(
                (
                    f"{name} tokens",
                    f"mean {spread.mean:,.1f}, p50 {spread.p50:,.0f}, p95 {spread.p95:,.0f}, p99 {spread.p99:,.0f}, "
                    f"largest {spread.largest:,}",
                )
            )
        rows.append(("shared prefixes", f"{self.shared_share:.1%} of {self.prompt_tokens:,} prompt tokens"))
        if self.adapters:
            rows.append(("adapters", f"{self.adapters:,}, used by {self.requests_with_adapter:,} requests"))
        if self.images:
            rows.append(("images", f"{self.images:,}, {self.image_tokens:,} tokens"))
        return rows


def summarize(workload: Workload) -> Summary:
    """Reads every segment once."""
    opening = workload.times[workload.after < 0]
    is_image = workload.keys >> np.uint64(56) == Kind.IMAGE
    used = workload.adapter[workload.adapter >= 0]
    return Summary(
        name=workload.name,
        requests=len(workload),
        sessions=len(opening),
        mean_rate=workload.mean_rate,
        duration=float(opening[-1]),
        prompt=Spread.of(workload.prompt_lengths),
        output=Spread.of(workload.output_lengths),
        prompt_tokens=int(workload.prompt_lengths.sum()),
        shared_tokens=_shared_tokens(workload),
        adapters=len(np.unique(used)),
        requests_with_adapter=len(used),
        images=int(np.count_nonzero(is_image)),
        image_tokens=int(workload.lengths[is_image].sum()),
    )


def _shared_tokens(workload: Workload) -> int:
    """By a tree whose edges are segments. Requests are looked at in the order of their indices."""
    longest: dict[tuple[int, int], int] = {}  # by node and key: of the edges with this key that leave this node
    nodes: dict[tuple[int, int, int], int] = {}  # by node, key and length: where the edge ends
    num_nodes = len(workload.adapters) + 1  # a root each
    behind_answer: list[int] = []  # a node for every request
    shared = start = 0
    keys, lengths = workload.keys.tolist(), workload.lengths.tolist()
    whole = (workload.prompt_lengths + workload.output_lengths).tolist()
    for after, adapter, end in zip(workload.after.tolist(), workload.adapter.tolist(), workload.ends.tolist()):
        node = behind_answer[after] if after >= 0 else adapter + 1
        shared += whole[after] if after >= 0 else 0
        for key, length in zip(keys[start:end], lengths[start:end]):
            before = longest.get((node, key), 0)
            shared += min(before, length)
            longest[node, key] = max(before, length)
            node = nodes.setdefault((node, key, length), num_nodes)
            num_nodes += node == num_nodes
        behind_answer.append(num_nodes)
        num_nodes += 1
        start = end
    return shared
