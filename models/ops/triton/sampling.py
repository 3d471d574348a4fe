"""Truncation of logits by top-k and top-p without a sort: the threshold is found digit by digit.

A float's bits, turned so that they order like the floats, are four-bit digits. Each of eight passes over the logits
finds one more digit of the largest threshold at or above which enough tokens (top-k) or enough of their probability
(top-p) lie. Reference: `hybrid/runner/truncation.py`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import torch
import triton
import triton.language as tl

TILE = 256  # logits that a program looks at together
PIECE = 4  # tiles of a program
DIGITS = 8
CHOICES = 16  # of a digit


@triton.jit
def _ordered(x):
    """float32 -> int32 that order like them; -0.0 is 0.0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit(do_not_specialize=["shift"])
def measure(
    logits,  # [rows, size]
    largest,  # [rows]
    prefixes,  # [rows] int64 from 0, digits that are known; those to come are 0
    sums,  # [rows, pieces, CHOICES] float64
    size,
    shift,  # bits behind the digit that is sought
    stride,
    BY_WEIGHT: tl.constexpr,
    TILE: tl.constexpr,
    PIECE: tl.constexpr,
    CHOICES: tl.constexpr,
):
    """Grid (rows, size / (TILE PIECE)): how many logits, or how much of exp(logit - largest), each digit keeps."""
    row = tl.program_id(0).to(tl.int64)
    digit = tl.arange(0, CHOICES).to(tl.int64)
    thresholds = tl.load(prefixes + row) + digit * (tl.full([], 1, tl.int64) << shift)
    thresholds = (thresholds - 2147483648).to(tl.int32)
    most = tl.load(largest + row)
    total = tl.zeros([CHOICES], tl.float64)
    begin = tl.program_id(1) * PIECE * TILE
    for start in range(begin, tl.minimum(begin + PIECE * TILE, size), TILE):
        i = start + tl.arange(0, TILE)
        x = tl.load(logits + row * stride + i, mask=i < size, other=float("-inf"))
        weight = tl.exp(x - most) if BY_WEIGHT else tl.full([TILE], 1.0, tl.float32)
        weight = tl.where(i < size, weight, 0.0)
        kept = _ordered(x)[:, None] >= thresholds[None, :]
        total += tl.sum(tl.where(kept, weight[:, None], 0.0), 0).to(tl.float64)
    place = (row * tl.num_programs(1) + tl.program_id(1)) * CHOICES
    tl.store(sums + place + tl.arange(0, CHOICES), total)


def threshold(logits: torch.Tensor, wanted: torch.Tensor, by_weight: bool) -> torch.Tensor:
    """The largest t [rows] such that the logits >= t are `wanted` many, or hold that share of the probability.

    logits [rows, size] float32, contiguous but for the first axis; wanted [rows] float64, a number from 1 to size, or a
    share below 1.
    """
    rows, size = logits.shape
    pieces = triton.cdiv(size, TILE * PIECE)
    largest = logits.amax(dim=-1)
    sums = torch.empty((rows, pieces, CHOICES), dtype=torch.float64, device=logits.device)
    prefixes = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    for shift in range(4 * (DIGITS - 1), -1, -4):
        measure[(rows, pieces)](
            logits,
            largest,
            prefixes,
            sums,
            size,
            shift,
            logits.stride(0),
            BY_WEIGHT=by_weight,
            TILE=TILE,
            PIECE=PIECE,
            CHOICES=CHOICES,
        )
        held = sums.sum(dim=1)  # falls from digit to digit; the first is that of the known digits alone
        if by_weight and shift == 4 * (DIGITS - 1):
            wanted = wanted * held[:, 0]  # all of it
        digit = (held[:, 1:] >= wanted[:, None]).sum(dim=-1)
        prefixes += digit << shift
    bits = torch.where(prefixes >= 1 << 31, prefixes - (1 << 31), -1 - prefixes)  # the inverse of `_ordered`
    return bits.to(torch.int32).view(torch.float32)
