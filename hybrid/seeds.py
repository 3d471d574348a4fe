"""Seeds of requests: a user's own, or one made from the engine's seed and the request's number."""

import hashlib


def derive_seed(*parts: int) -> int:
    """64 bits that depend on all the parts, and on their order."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def sequence_seeds(seed: int, n: int) -> list[int]:
    """Seeds of the n sequences of one request: the first keeps `seed`, so that n does not change what it draws."""
    return [seed if index == 0 else derive_seed(seed, index) for index in range(n)]
