"""In-batch prefix sharing: of several requests with a common uncached prefix the first goes first, its siblings wait.

A sibling waits for a resume point that a running prefill is about to reach, and then hits it in the prefix cache.
"""

from bisect import insort
from collections.abc import Sequence

from hybrid.pools.memory import Memory
from hybrid.pools.prefix_cache import common_prefix

from .builder import PlanBuilder
from .tracked import Tracked

MAX_ELDERS = 32


def elder_sibling(
    memory: Memory, builder: PlanBuilder, elders: Sequence[Tracked], request: Tracked, min_shared_tokens: int
) -> Tracked | None:
    """The one of `elders` (running requests with resume points ahead) that will publish one well beyond
    `request.match`, which must be up to date. Mutates: asks it for one more resume point, where the two prompts
    part."""
    if memory.cache is None or not request.new.enable_prefix_caching:
        return None
    last = len(request.known) - 1
    for elder in elders[:MAX_ELDERS]:
        if elder.namespace != request.namespace or not elder.new.enable_prefix_caching:
            continue
        shared = request.common.get(elder.request_id)
        if shared is None:
            shared = request.common[elder.request_id] = common_prefix(elder.prompt_keys, request.prompt_keys)
        shared = min(shared, last)
        if shared - request.match.length < min_shared_tokens:
            continue
        points = [point for point in elder.wanted + elder.awaited if point <= shared]
        if shared not in points and _still_ahead(memory, builder, elder, shared):
            insort(elder.wanted, shared)
            points.append(shared)
        if points and max(points) - request.match.length >= min_shared_tokens:
            return elder
    return None


def _still_ahead(memory: Memory, builder: PlanBuilder, elder: Tracked, position: int) -> bool:
    """Whether the elder computes past `position` in the step being planned or later."""
    if elder.row is None:
        return False
    done = builder.chunk_starts.get(elder.row, int(memory.table.num_computed[elder.row]))
    return done < position < elder.num_prompt_tokens
