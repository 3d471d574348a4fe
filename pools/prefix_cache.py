"""PrefixCache: one radix tree over tokens that remembers blocks and recurrent states of finished work.

Token granularity: a node may start or end inside a block. Its `full` blocks cover the logical blocks start // B ..
(end - 1) // B; where a node starts inside a block, that block also holds the content of the tokens before, so along a
path the deepest node's block wins. A resume point is a position where full blocks, the window blocks that the next
token sees, and (for models that keep one) a recurrent state taken exactly there all exist.

Keys are int64, one per token: the token id, or for image placeholders a negative number from content hash and offset
(`image_keys`). Every namespace (adapter generation, cache salt) has its own root. Eviction is per
pool, in the order of recomputation saved per unit of memory (`eviction.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from .eviction import EvictionOrder
from .ledger import EMPTY, Ints, InvariantViolation, UnitPool

ABSENT = -1  # a window block that a node does not (any longer) remember


def image_keys(mm_hash: str, num_tokens: int) -> Ints:
    """Keys of an image's placeholder tokens: negative, from content and offset, so that they never equal a token id."""
    base = np.frombuffer(blake2b(mm_hash.encode(), digest_size=8).digest(), dtype=np.uint64)
    spread = np.arange(num_tokens, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys: Ints = -1 - ((base + spread) >> np.uint64(1)).astype(np.int64)
    return keys


def common_prefix(a: Ints, b: Ints) -> int:
    """Number of equal leading keys."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


@dataclass(slots=True, eq=False)
class Node:
    keys: Ints  # this node's own tokens
    start: int  # tokens before it
    parent: "Node | None"
    full: Ints
    window: Ints  # as long as `full` would be; ABSENT where not remembered
    state: int | None = None
    namespace: str = ""  # roots only
    children: "dict[int, Node]" = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.keys)


@dataclass(frozen=True, slots=True)
class Match:
    """A resume point and what it consists of. length 0: nothing usable.

    matched_tokens >= length: how far the tokens are known at all (where this prompt diverges from cached ones).
    full, window: blocks of logical index 0.. and window_first.. up to the one that holds token length - 1.
    """

    length: int
    matched_tokens: int
    full: Ints
    window: Ints
    window_first: int
    state: int | None
    path: tuple[Node, ...] = ()


NO_MATCH = Match(0, 0, EMPTY, EMPTY, 0, None)


class PrefixCache:
    """The tree over three pools; a pool of a kind that the model does not have is None."""

    def __init__(
        self,
        block_size: int,
        sliding_window: int,
        full: UnitPool | None,
        window: UnitPool | None,
        state: UnitPool | None,
    ) -> None:
        self.block_size = block_size
        self.sliding_window = sliding_window
        self.full, self.window, self.state = full, window, state
        self.version = 0  # rises whenever a match may have changed
        self._roots: dict[str, Node] = {}
        self._orders: dict[str, EvictionOrder[Node]] = {}
        for pool, evict in ((full, self._evict_full), (window, self._evict_window), (state, self._evict_state)):
            if pool is not None:
                pool.evict = evict
                self._orders[pool.name] = EvictionOrder()

    # --- match ---------------------------------------------------------------------------------------------------

    def match(self, namespace: str, keys: Ints, limit: int) -> Match:
        """The longest resume point at or below `limit` tokens. Pure."""
        root = self._roots.get(namespace)
        if root is None:
            return NO_MATCH
        path: list[Node] = []
        node, position = root, 0
        while position < len(keys):
            child = node.children.get(int(keys[position]))
            if child is None:
                break
            shared = common_prefix(child.keys, keys[position:])
            position += shared
            path.append(child)
            node = child
            if shared < len(child.keys):
                break
        upper = min(position, limit)
        for length in self._candidates(path, upper):
            used = tuple(node for node in path if node.start < length)
            num_blocks = -(-length // self.block_size)
            window, first = EMPTY, 0
            if self.window is not None:
                first = self._first_seen(length)
                window = self._along(used, num_blocks, "window")[first:]
                if np.any(window == ABSENT):
                    continue
            return Match(
                length=length,
                matched_tokens=position,
                full=self._along(used, num_blocks, "full") if self.full is not None else EMPTY,
                window=window,
                window_first=first,
                state=used[-1].state if self.state is not None else None,
                path=used,
            )
        return Match(0, position, EMPTY, EMPTY, 0, None)

    def _first_seen(self, length: int) -> int:
        """First logical block that the token after `length` tokens sees in a sliding-window layer."""
        return max(0, length - self.sliding_window + 1) // self.block_size

    def _candidates(self, path: list[Node], upper: int) -> Iterator[int]:
        """Positions along `path` at or below `upper` that may be resume points, longest first."""
        if upper <= 0:
            return
        if self.state is not None:
            yield from (node.end for node in reversed(path) if node.state is not None and node.end <= upper)
        elif self.window is None:
            yield upper
        else:
            used = [node for node in path if node.start < upper]
            window = self._along(used, -(-upper // self.block_size), "window")
            index = np.arange(len(window))
            last_gap = np.maximum.accumulate(np.where(window == ABSENT, index, -1))
            lengths = np.minimum((index + 1) * self.block_size, upper)
            seen = np.maximum(lengths - self.sliding_window + 1, 0) // self.block_size
            # Inside a node whatever holds up to a block's end holds before; a node's end may lie inside a block.
            ends = (node.end for node in used if node.end <= upper)
            yield from sorted({*lengths[last_gap < seen].tolist(), *ends}, reverse=True)

    def _along(self, path: Sequence[Node], num_blocks: int, kind: str) -> Ints:
        """Block table along a path. The deepest node that covers a logical block decides, also by not remembering it:
        what a node above remembers of that block may go on with other tokens."""
        table = np.full(num_blocks, ABSENT, dtype=np.int64)
        for node in path:
            first = node.start // self.block_size
            blocks: Ints = getattr(node, kind)[: num_blocks - first]
            table[first : first + len(blocks)] = blocks
        return table

    def touch(self, match: Match) -> None:
        """Mutates: a hit makes everything along its path worth keeping longer."""
        for node in match.path:
            self._rank(node)

    # --- publish -------------------------------------------------------------------------------------------------

    def publish(
        self, namespace: str, keys: Ints, full: Ints, window: Ints, window_first: int, state: int | None
    ) -> bool:
        """Mutates: remember the resume point after len(keys) tokens. Call it only when its step was processed.

        full: blocks of logical index 0..; window: of window_first..; both up to the block of the last token, all held
        by the caller, who keeps its references. Returns whether `state` was taken over by the tree (an entry was
        added); False when the tree has one at this position already.
        """
        length = len(keys)
        if length == 0:
            return False
        self.version += 1
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(EMPTY, 0, None, EMPTY, EMPTY, namespace=namespace)
        path: list[Node] = []
        node, position = root, 0
        while position < length:
            child = node.children.get(int(keys[position]))
            if child is None:
                child = self._new_leaf(node, position, keys[position:], full)
            else:
                shared = common_prefix(child.keys, keys[position:])
                if shared < len(child.keys):
                    child = self._split(child, shared)
            path.append(child)
            node, position = child, child.end
        if self.window is not None:
            self._remember_window(path, length, window, window_first)
        taken = state is not None and node.state is None
        if taken and self.state is not None and state is not None:
            node.state = state
            self.state.publish(np.array([state], dtype=np.int64))
        for touched in path:
            self._rank(touched)
        return taken

    def _new_leaf(self, parent: Node, start: int, keys: Ints, full: Ints) -> Node:
        first, end = start // self.block_size, -(-(start + len(keys)) // self.block_size)
        blocks = full[first:end].copy() if self.full is not None else EMPTY
        leaf = Node(keys.copy(), start, parent, blocks, np.full(end - first, ABSENT, dtype=np.int64))
        if self.full is not None:
            self.full.publish(blocks)
        parent.children[int(keys[0])] = leaf
        return leaf

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after `at` of its tokens; returns the new upper half. A block that straddles the cut gets one
        entry more."""
        assert node.parent is not None and 0 < at < len(node.keys)
        middle = node.start + at
        first = node.start // self.block_size
        upper_blocks = -(-middle // self.block_size) - first
        lower_first = middle // self.block_size - first
        upper = Node(
            node.keys[:at], node.start, node.parent, node.full[:upper_blocks], node.window[:upper_blocks].copy()
        )
        if lower_first < upper_blocks:
            if self.full is not None:
                self.full.publish(node.full[lower_first:upper_blocks])
            straddling = node.window[lower_first:upper_blocks]
            if self.window is not None:
                self.window.publish(straddling[straddling != ABSENT])
        node.parent.children[int(upper.keys[0])] = upper
        upper.children[int(node.keys[at])] = node
        node.keys, node.start, node.parent = node.keys[at:], middle, upper
        node.full, node.window = node.full[lower_first:], node.window[lower_first:].copy()
        return upper

    def _remember_window(self, path: list[Node], length: int, window: Ints, window_first: int) -> None:
        """Fill gaps of the blocks that the next token after `length` sees."""
        assert self.window is not None
        seen = max(0, length - self.sliding_window + 1) // self.block_size
        have = window_first + len(window)
        for node in path:
            first = node.start // self.block_size
            low, high = max(seen, window_first, first), min(first + len(node.window), have)
            if low >= high:
                continue
            part = node.window[low - first : high - first]
            gaps = part == ABSENT
            fresh = window[low - window_first : high - window_first][gaps]
            self.window.publish(fresh)
            part[gaps] = fresh

    # --- eviction ------------------------------------------------------------------------------------------------

    def _rank(self, node: Node) -> None:
        """Give `node` a fresh place in the eviction order of each pool it uses, unless an eviction has removed it."""
        if node.parent is None:
            return
        if self.full is not None and not node.children:
            self._orders[self.full.name].place(node, len(node.keys) / len(node.full))
        if self.state is not None and node.state is not None:
            self._orders[self.state.name].place(node, float(node.end - self._resumable_before(node)))
        if self.window is not None:
            blocks = int(np.count_nonzero(node.window != ABSENT))
            if blocks:
                self._orders[self.window.name].place(node, (node.end - self._resumable_before(node)) / blocks)

    def _resumable_before(self, node: Node) -> int:
        """The position to recompute from if `node`'s own resume point were lost."""
        above = node.parent
        while above is not None and above.parent is not None:
            if self.state is None or above.state is not None:
                return above.end
            above = above.parent
        return 0

    def _evict_full(self, n: int) -> None:
        full = self.full
        assert full is not None
        self.version += 1
        progress = True
        while full.num_free < n and progress:
            progress = False
            for node in self._orders[full.name].victims():
                if node.children or full.refs[node.full].any() or full.busy[node.full].max() > full.settled_step:
                    continue
                self._remove_leaf(node)
                progress = True
                if full.num_free >= n:
                    return
        for root in list(self._roots.values()):
            for node in list(self._post_order(root)):
                if full.num_free >= n:
                    return
                self._remove_leaf(node)  # also below nodes in use: that only makes them unknown to later prompts

    def _evict_window(self, n: int) -> None:
        window = self.window
        assert window is not None
        self.version += 1
        for node in self._orders[window.name].victims():
            if window.num_free >= n:
                return
            idle = node.window != ABSENT
            idle[idle] = window.refs[node.window[idle]] == 0
            blocks = node.window[idle]
            node.window[idle] = ABSENT
            if not np.any(node.window != ABSENT):
                self._orders[window.name].forget(node)
            window.unpublish(blocks)
            self._prune(node)

    def _evict_state(self, n: int) -> None:
        state = self.state
        assert state is not None
        self.version += 1
        for node in self._orders[state.name].victims():
            if state.num_free >= n:
                return
            assert node.state is not None
            if state.refs[node.state] == 0 and state.busy[node.state] <= state.settled_step:
                self._drop_state(node)
                self._prune(node)

    def _drop_state(self, node: Node) -> None:
        assert self.state is not None and node.state is not None
        slot, node.state = node.state, None
        self._orders[self.state.name].forget(node)
        self.state.unpublish(np.array([slot], dtype=np.int64))

    def _remove_leaf(self, node: Node) -> None:
        """Forget a childless node and what it remembers in every pool."""
        assert node.parent is not None and not node.children
        parent = node.parent
        del parent.children[int(node.keys[0])]
        node.parent = None
        if self.full is not None:
            self.full.unpublish(node.full)
        if self.window is not None:
            self.window.unpublish(node.window[node.window != ABSENT])
        if node.state is not None:
            self._drop_state(node)
        for order in self._orders.values():
            order.forget(node)
        if parent.parent is not None:
            self._rank(parent)
            self._prune(parent)
        elif not parent.children:
            del self._roots[parent.namespace]

    def _prune(self, node: Node) -> None:
        """Without full attention a leaf lives only for its state or window."""
        bare = node.state is None and not np.any(node.window != ABSENT)
        if self.full is None and bare and not node.children and node.parent is not None:
            self._remove_leaf(node)

    def _post_order(self, node: Node) -> Iterator[Node]:
        """All nodes below `node`, children first (iteratively: trees can be deep)."""
        order, stack = [], [node]
        while stack:
            current = stack.pop()
            order.append(current)
            stack.extend(current.children.values())
        return (current for current in reversed(order) if current is not node)

    def clear(self) -> None:
        """Mutates: forget everything."""
        self.version += 1
        for root in list(self._roots.values()):
            for node in list(self._post_order(root)):
                if node.parent is not None:  # a prune may have removed it already
                    self._remove_leaf(node)

    # --- invariants ----------------------------------------------------------------------------------------------

    def num_nodes(self) -> int:
        return sum(1 for root in self._roots.values() for _ in self._post_order(root))

    def check(self) -> None:
        """Every entry that a unit counts is a node that remembers it. Raises InvariantViolation."""
        entries: dict[str, list[Ints]] = {"full": [EMPTY], "window": [EMPTY], "state": [EMPTY]}
        for root in self._roots.values():
            for node in self._post_order(root):
                if node.parent is None or node.parent.end != node.start:
                    raise InvariantViolation(f"prefix cache: node at {node.start} does not continue its parent")
                span = -(-node.end // self.block_size) - node.start // self.block_size
                if self.full is not None:
                    if len(node.full) != span:
                        raise InvariantViolation(
                            f"prefix cache: {len(node.full)} blocks for tokens {node.start}..{node.end}"
                        )
                    entries["full"].append(node.full)
                if self.window is not None:
                    entries["window"].append(node.window)
                if self.state is not None and node.state is not None:
                    entries["state"].append(np.array([node.state]))
        for kind, pool in (("full", self.full), ("window", self.window), ("state", self.state)):
            if pool is None:
                continue
            units = np.concatenate(entries[kind])
            counts = np.bincount(units[units != ABSENT], minlength=pool.capacity)
            if not np.array_equal(counts, pool.entries):
                raise InvariantViolation(
                    f"prefix cache: {pool.name} entries {pool.entries.tolist()} are not those of the tree"
                )
