"""PrefixCache: what may be resumed where, what is remembered once, and what goes first."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from hybrid.pools.ledger import EMPTY, Ints, UnitPool
from hybrid.pools.prefix_cache import Match, PrefixCache, image_keys
from hybrid.pools.window import WindowPool
from tests.pools.units import columns, take


def keys(*tokens: int) -> Ints:
    return np.array(tokens, dtype=np.int64)


@dataclass
class Tree:
    """A cache over three pools. `publish` plays a request that computed everything itself and then ended."""

    block_size: int = 4
    width: int = 0  # sliding window; 0: no such pool
    full: bool = True
    state: bool = False
    units: int = 64
    pools: dict[str, UnitPool] = field(init=False)
    cache: PrefixCache = field(init=False)

    def __post_init__(self) -> None:
        self.pools = {
            "full": UnitPool("full", "block", self.units),
            "window": WindowPool("window", "block", self.units),
            "state": UnitPool("state", "slot", self.units),
        }
        self.cache = PrefixCache(
            self.block_size,
            self.width,
            self.pools["full"] if self.full else None,
            self.pools["window"] if self.width else None,
            self.pools["state"] if self.state else None,
        )

    def publish(self, tokens: Ints, namespace: str = "", state: bool = True, window_first: int = 0) -> Ints:
        """Returns the full blocks that the request had."""
        num_blocks = -(-len(tokens) // self.block_size)
        full = take(self.pools["full"], num_blocks) if self.full else EMPTY
        window = take(self.pools["window"], num_blocks - window_first, 0) if self.width else EMPTY
        slot = take(self.pools["state"], 1) if self.state else EMPTY
        self.cache.publish(namespace, tokens, full, window, window_first, int(slot[0]) if state and len(slot) else None)
        for name, units in (("full", full), ("window", window), ("state", slot)):
            self.pools[name].release(units)
        self.check()
        return full

    def match(self, tokens: Ints, limit: int | None = None, namespace: str = "") -> Match:
        return self.cache.match(namespace, tokens, len(tokens) if limit is None else limit)

    def check(self) -> None:
        self.cache.check()
        for pool in self.pools.values():
            columns(pool)

    def evict(self, pool: str, count: int) -> None:
        """Have somebody take all free units and `count` more."""
        units = self.pools[pool]
        units.release(
            take(units, units.num_free + count, 0) if pool == "window" else take(units, units.num_free + count)
        )
        self.check()


A = np.arange(1, 11, dtype=np.int64)  # ten tokens: blocks of four, the third half full


def test_matches_have_token_granularity() -> None:
    tree = Tree()
    blocks = tree.publish(A)
    for length in range(1, 11):
        match = tree.match(A[:length])
        assert (match.length, match.matched_tokens) == (length, length)
        assert match.full.tolist() == blocks[: -(-length // 4)].tolist()
    assert tree.match(A, limit=9).length == 9 and tree.match(A, limit=9).matched_tokens == 10
    assert tree.match(keys(99, 98)).length == 0
    assert tree.match(np.append(A, keys(50, 51))).length == 10
    assert tree.match(A, limit=0).length == 0


def test_two_prompts_part_inside_a_block() -> None:
    """Each finds its own block, the shared part finds either; nothing of the other is seen."""
    tree = Tree()
    b = np.append(A[:6], keys(90, 91, 92, 93))
    blocks_a, blocks_b = tree.publish(A), tree.publish(b)
    assert tree.cache.num_nodes() == 3
    assert tree.match(A).full.tolist() == blocks_a.tolist()
    assert tree.match(b).full.tolist() == [blocks_a[0], *blocks_b[1:]]  # the first block is remembered once
    assert tree.match(A[:6]).full.tolist() == blocks_a[:2].tolist()
    third = np.append(A[:6], keys(70))
    assert (tree.match(third).length, tree.match(third).matched_tokens) == (6, 6)


def test_a_split_remembers_the_straddling_block_twice() -> None:
    tree = Tree(width=64)
    blocks = tree.publish(A)
    tree.publish(np.append(A[:6], keys(90)))
    assert tree.pools["full"].entries[blocks].tolist() == [1, 2, 1]
    tree.publish(np.append(A[:4], keys(80)))  # a cut between two blocks
    assert tree.pools["full"].entries[blocks].tolist() == [1, 2, 1]
    tree.cache.clear()
    tree.check()
    assert columns(tree.pools["full"]) == columns(tree.pools["window"]) == {"free": 64}


def test_a_window_remembers_what_the_next_token_sees() -> None:
    """Window 3, blocks of 2: after ten tokens the next one sees 8, 9 and itself, that is block 4."""
    tree = Tree(block_size=2, width=3)
    tree.publish(A)
    assert columns(tree.pools["window"])["cached"] == 1
    assert tree.match(A).window.tolist() != [-1] and (tree.match(A).length, tree.match(A).window_first) == (10, 4)
    assert tree.match(A, limit=9).length == 0  # 9 also sees token 7 in block 3
    tree.publish(A[:4])
    assert (tree.match(A, limit=9).length, tree.match(A, limit=9).window_first) == (4, 1)
    tree.publish(A[:9])  # the gap is filled
    assert tree.match(A, limit=9).length == 9


def test_a_window_may_be_published_without_its_beginning() -> None:
    """A request gives blocks behind its window back while it runs."""
    tree = Tree(block_size=2, width=3)
    tree.publish(A, window_first=4)
    assert tree.match(A).length == 10
    tree = Tree(block_size=2, width=4)
    tree.publish(A, window_first=4)  # but the next token sees token 7, in block 3
    assert tree.match(A).length == 0


def test_a_window_resumes_at_a_point_inside_a_block() -> None:
    """A system prompt of 100 tokens hits also where a longer prompt is known that goes on with the same five tokens."""
    tree = Tree(block_size=16, width=20)
    known = np.arange(1, 151)
    tree.publish(known[:100])
    tree.publish(known)
    assert tree.match(np.append(known[:105], keys(999))).length == 100


def test_a_state_resumes_exactly_where_it_was_taken() -> None:
    tree = Tree(state=True)
    tree.publish(A)
    assert tree.match(A).length == 10
    assert (tree.match(A, limit=9).length, tree.match(A, limit=9).matched_tokens) == (0, 10)
    tree.publish(A[:7])
    assert tree.match(A, limit=9).length == 7
    tree.publish(A[:5], state=False)  # blocks alone are no resume point
    assert tree.match(A, limit=6).length == 0


def test_a_state_that_is_there_already_is_not_taken_over() -> None:
    tree = Tree(full=False, state=True)
    slots = take(tree.pools["state"], 2).tolist()
    taken = [tree.cache.publish("", A, EMPTY, EMPTY, 0, slot) for slot in slots]
    assert taken == [True, False]
    assert tree.match(A).state == slots[0]
    assert columns(tree.pools["state"]) == {"free": 62, "held": 1, "pinned": 1}


def test_namespaces_never_meet() -> None:
    tree = Tree()
    tree.publish(A, namespace="1/salt")
    assert tree.match(A).length == tree.match(A, namespace="1/").length == 0
    assert tree.match(A, namespace="1/salt").length == 10


def test_image_keys_say_content_and_offset() -> None:
    first, second = image_keys("picture 1", 20), image_keys("picture 2", 20)
    assert first.max() < 0 and second.max() < 0, "no token id"
    assert len(set(first.tolist()) | set(second.tolist())) == 40
    assert image_keys("picture 1", 5).tolist() == first[:5].tolist()


def test_only_what_no_step_touches_and_nobody_uses_is_evicted() -> None:
    tree = Tree(units=8)
    used, idle = tree.publish(A[:4]), tree.publish(A[4:8])
    tree.pools["full"].share(used)
    tree.evict("full", 1)
    assert tree.match(A[:4]).full.tolist() == used.tolist() and tree.match(A[4:8]).length == 0
    assert idle[0] != used[0]


def test_leaves_go_before_what_they_continue() -> None:
    tree = Tree(units=8)
    tree.publish(np.arange(1, 9))
    tree.publish(np.append(np.arange(1, 5), np.arange(21, 25)))
    tree.evict("full", 1)
    assert [tree.match(np.arange(1, 9)).length, tree.match(np.arange(1, 5)).length] == [4, 4]
    tree.evict("full", 1)
    assert tree.match(np.arange(1, 5)).length == 4
    tree.evict("full", 1)
    assert tree.cache.num_nodes() == 0


def test_the_cheaper_state_goes_first_until_the_clock_has_passed_the_other() -> None:
    """GreedyDual: priority = clock + tokens to recompute, and the clock rises to what was evicted.

    Beside one state of 30 tokens there is room for three of 4. Those go at priority 4, 8, ... 28, three of each, before
    the newest have 32: the fourth room is needed 21 times until then.
    """
    tree = Tree(full=False, state=True, units=4)
    long, published = np.arange(1, 31), 0
    tree.publish(long)
    while tree.match(long).length == 30:
        published += 1
        tree.publish(np.arange(100 * published, 100 * published + 4))
    assert published == 3 + 21 + 1


def test_a_hit_keeps_a_path_longer() -> None:
    tree = Tree(full=False, state=True, units=3)
    first, second = np.arange(1, 9), np.arange(11, 19)
    tree.publish(first)
    tree.publish(second)
    tree.cache.touch(tree.match(first))
    tree.evict("state", 1)
    assert [tree.match(first).length, tree.match(second).length] == [8, 0]


def test_evicting_one_pool_keeps_the_others() -> None:
    tree = Tree(block_size=2, width=3, state=True, units=8)
    tree.publish(A)
    tree.evict("state", 1)
    match = tree.match(A)
    assert (match.length, match.matched_tokens) == (0, 10)
    assert columns(tree.pools["full"])["cached"] == 5 and columns(tree.pools["window"])["cached"] == 1
    tree.publish(A)  # the state comes back, the blocks never left
    assert columns(tree.pools["full"])["cached"] == 5 and tree.match(A).length == 10
    tree.evict("window", 1)
    assert tree.match(A).length == 0
    assert columns(tree.pools["full"])["cached"] == 5 and columns(tree.pools["state"])["cached"] == 1
    tree.evict("full", 5)
    assert columns(tree.pools["state"]) == columns(tree.pools["full"]) == {"free": 8}


@pytest.mark.parametrize("pool", ["full", "window", "state"])
def test_an_empty_tree_keeps_no_root(pool: str) -> None:
    """Salts and adapter generations come and go: their roots must not pile up."""
    tree = Tree(block_size=2, width=3 if pool == "window" else 0, full=pool == "full", state=pool == "state", units=8)
    for serial in range(20):
        tree.publish(A, namespace=f"{serial}/")
        tree.evict(pool, columns(tree.pools[pool])["cached"])
        assert tree.cache.num_nodes() == 0 and not tree.cache._roots


def test_what_is_forgotten_in_use_becomes_free_afterwards() -> None:
    tree = Tree()
    blocks = tree.publish(A)
    tree.pools["full"].share(blocks)
    tree.cache.clear()
    tree.check()
    assert columns(tree.pools["full"]) == {"free": 61, "held": 3}
    tree.pools["full"].release(blocks)
    assert columns(tree.pools["full"]) == {"free": 64}


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("seed", range(3))
def test_matches_equal_a_search_through_everything_published(state: bool, width: int, seed: int) -> None:
    """Without eviction the longest resume point is known: of those published, or with blocks alone any token."""
    dice = random.Random(seed)
    tree = Tree(block_size=3, width=width, state=state, units=4000)
    published: list[list[int]] = []
    for _ in range(60):
        tokens = [dice.randrange(1, 3) for _ in range(dice.randrange(1, 12))]
        if published and dice.random() < 0.6:
            tokens = dice.choice(published)[: dice.randrange(1, 12)] + tokens
        tree.publish(np.array(tokens, dtype=np.int64))
        published.append(tokens)
        asked = [*dice.choice(published), dice.randrange(1, 3)]
        limit = dice.randrange(len(asked) + 1)
        match = tree.match(np.array(asked, dtype=np.int64), limit)
        common = [
            next((i for i, (x, y) in enumerate(zip(old, asked)) if x != y), min(len(old), len(asked)))
            for old in published
        ]
        points = [len(old) for old, shared in zip(published, common) if shared == len(old) <= limit]
        assert match.matched_tokens == max(common)
        if state:
            assert match.length == max(points, default=0)
        elif width:
            assert match.length >= max(points, default=0)
        else:
            assert match.length == min(limit, max(common))


def test_the_eviction_queue_stays_small() -> None:
    """Every touch ranks anew; entries that became void are dropped."""
    tree = Tree()
    for serial in range(12):
        tree.publish(np.arange(100 * serial, 100 * serial + 8))
    for _ in range(20_000):
        tree.cache.touch(tree.match(np.arange(8)))
    assert len(tree.cache._orders["full"]) < 3000
    tree.check()
