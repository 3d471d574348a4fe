"""The six orders of the waiting queue. Pure: an order only proposes, it grants nothing and knows no pool.

fcfs         arrival
priority     lower number first, then arrival
lpm          longest cached prefix first
dfs-weight   walk of the prefix tree, heaviest subtree (most waiting requests) first
lof          longest output first
routing-key  keys (adapters, by default) that most running requests use, first
"""

from collections import Counter
from collections.abc import Callable, Sequence

from hybrid.pools.prefix_cache import Node

from .config import SchedulingPolicy
from .tracked import Tracked

StaticKey = Callable[[Tracked], tuple[int, ...]]


def by_arrival(request: Tracked) -> tuple[int, ...]:
    return (request.seq,)


def static_key(policy: SchedulingPolicy) -> StaticKey | None:
    """The sort key of an order that depends on the request alone; None for orders that look around."""
    match policy:
        case "fcfs":
            return by_arrival
        case "priority":
            return lambda request: (request.new.priority, request.seq)
        case "lof":
            return lambda request: (-request.new.max_tokens, request.seq)
        case _:
            return None


def longest_prefix_first(waiting: Sequence[Tracked]) -> list[Tracked]:
    """By the length of `request.match`, which the caller has brought up to date."""
    return sorted(waiting, key=lambda request: (-request.match.length, request.seq))


def depth_first_by_weight(waiting: Sequence[Tracked]) -> list[Tracked]:
    """Requests grouped as a depth-first walk of the prefix tree meets them, heavier subtrees first."""
    weight: Counter[int] = Counter()
    first_seen: dict[int, int] = {}
    paths: dict[int, tuple[Node, ...]] = {}
    for request in sorted(waiting, key=by_arrival):
        paths[request.seq] = request.match.path
        for node in request.match.path:
            weight[id(node)] += 1
            first_seen.setdefault(id(node), request.seq)

    def place(request: Tracked) -> tuple[tuple[int, int], ...]:
        walk = tuple((-weight[id(node)], first_seen[id(node)]) for node in paths[request.seq])
        return (*walk, (1, request.seq))

    return sorted(waiting, key=place)


def most_used_key_first(waiting: Sequence[Tracked], running_keys: Counter[str]) -> list[Tracked]:
    """By how many running requests share the request's routing key; keys nobody runs keep arrival order."""
    return sorted(waiting, key=lambda request: (-running_keys[request.routing_key], request.seq))
