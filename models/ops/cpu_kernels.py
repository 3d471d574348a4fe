"""Kernels for a CPU, compiled by numba: decode steps of attention, Mamba-2 and convolution straight from the caches,
and what lies between the products of a layer.

Each reads what it needs once and copies nothing; the torch versions gather, compute and write back in several passes.
Rows are shared out over threads. All arrays are float32 and contiguous. References: `attention`, `ssd`, `conv`,
`elementwise`.
"""

from typing import Any

import numba
import numpy as np

FAST = {"reassoc", "contract", "arcp", "nsz"}  # what may be rounded otherwise; NaN and infinity stay what they are


@numba.njit(inline="always", fastmath={"contract"})
def exp(x: Any) -> Any:
    """e ** x within 2e-7 for float32 x <= 88; below -87 as at -87. Unlike numpy's it is vectorised inside a loop.

    Source: range reduction and polynomial of Cephes' expf (Moshier).
    """
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = x - n * np.float32(0.693359375)
    r += n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return (p * r * r + r + np.float32(1)) * power


@numba.njit(parallel=True, fastmath=FAST, cache=True, nogil=True)
def attend(
    query: Any, kv: Any, table: Any, first: Any, ends: Any, scale: Any, softcap: Any, sinks: Any, out: Any
) -> None:
    """query and out [D, num_heads, head_size], kv as in AttentionCache, table [D, blocks], row i sees first[i] ..
    ends[i] - 1. softcap 0: none; sinks [num_heads], or [0] for none. Mutates out."""
    num_rows, num_heads, size = query.shape
    num_kv_heads, block_size = kv.shape[2], kv.shape[3]
    group = num_heads // num_kv_heads
    for item in numba.prange(num_rows * num_kv_heads):
        row, head = item // num_kv_heads, item % num_kv_heads
        begin, end = first[row], ends[row]
        scores = np.empty((group, end - begin), np.float32)
        highest = np.full(group, -np.inf, np.float32)
        for j in range(group):
            if sinks.size:
                highest[j] = sinks[head * group + j]
        # 1. scores
        position = begin
        while position < end:
            logical = position // block_size
            block = table[row, logical]
            stop = min(end, (logical + 1) * block_size)
            for t in range(position, stop):
                key = kv[block, 0, head, t - logical * block_size]
                for j in range(group):
                    one = query[row, head * group + j]
                    score = np.float32(0)
                    for d in range(size):
                        score += one[d] * key[d]
                    score *= scale
                    if softcap > 0:
                        score = softcap * np.tanh(score / softcap)
                    scores[j, t - begin] = score
                    highest[j] = max(highest[j], score)
            position = stop
        # 2. softmax
        for j in range(group):
            total = np.float32(0)
            if sinks.size:
                total = exp(sinks[head * group + j] - highest[j])
            for t in range(end - begin):
                weight = exp(scores[j, t] - highest[j])
                scores[j, t] = weight
                total += weight
            for t in range(end - begin):
                scores[j, t] /= total
        # 3. values
        summed = np.zeros((group, size), np.float32)
        position = begin
        while position < end:
            logical = position // block_size
            block = table[row, logical]
            stop = min(end, (logical + 1) * block_size)
            for t in range(position, stop):
                value = kv[block, 1, head, t - logical * block_size]
                for j in range(group):
                    weight = scores[j, t - begin]
                    for d in range(size):
                        summed[j, d] += weight * value[d]
            position = stop
        for j in range(group):
            out[row, head * group + j] = summed[j]


@numba.njit(parallel=True, fastmath=FAST, cache=True, nogil=True)
def ssd_step(states: Any, slots: Any, fresh: Any, decay: Any, x: Any, b: Any, c: Any, y: Any) -> None:
    """h = decay h + x (outer) b; y = h . c. states [slots, H, P, N], decay [D, H], x and y [D, H, P], b and c
    [D, G, N]; a row that is fresh [D] starts from zero. Mutates states and y."""
    num_rows, num_heads, channels = x.shape
    num_groups, size = b.shape[1], b.shape[2]
    per_group = num_heads // num_groups
    for item in numba.prange(num_rows * num_heads):
        row, head = item // num_heads, item % num_heads
        state = states[slots[row], head]
        if fresh[row]:
            state[:] = 0
        kept = decay[row, head]
        inward, outward = b[row, head // per_group], c[row, head // per_group]
        for p in range(channels):
            one, added, total = state[p], x[row, head, p], np.float32(0)
            for n in range(size):
                value = one[n] * kept + added * inward[n]
                one[n] = value
                total += value * outward[n]
            y[row, head, p] = total


@numba.njit(parallel=True, fastmath=FAST, cache=True, nogil=True)
def conv_step(states: Any, slots: Any, fresh: Any, x: Any, weight: Any, bias: Any, out: Any) -> None:
    """One step of a causal convolution: states [slots, K - 1, C] move on by x [D, C]; weight [K, C], bias [C] or [0];
    a row that is fresh [D] starts from zero. Mutates states and out [D, C]."""
    tail, channels = states.shape[1], x.shape[1]
    for row in numba.prange(len(x)):
        state, sums = states[slots[row]], out[row]
        if fresh[row]:
            state[:] = 0
        for c in range(channels):
            sums[c] = x[row, c] * weight[tail, c]
        if bias.size:
            for c in range(channels):
                sums[c] += bias[c]
        for k in range(tail):
            for c in range(channels):
                sums[c] += state[k, c] * weight[k, c]
        for k in range(tail - 1):
            for c in range(channels):
                state[k, c] = state[k + 1, c]
        for c in range(channels):
            state[tail - 1, c] = x[row, c]


@numba.njit(parallel=True, fastmath=FAST, cache=True, nogil=True)
def rms_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    """x / sqrt(mean(x ** 2) + eps) * weight; x and out [rows, size], weight [size]. Mutates out."""
    size = x.shape[1]
    for row in numba.prange(len(x)):
        total = np.float32(0)
        for i in range(size):
            total += x[row, i] * x[row, i]
        scale = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
        for i in range(size):
            out[row, i] = x[row, i] * scale * weight[i]


@numba.njit(parallel=True, fastmath=FAST, cache=True, nogil=True)
def rotate_halves(heads: Any, count: Any, cos: Any, sin: Any) -> None:
    """Pairs (i, i + half) of the first `count` heads [T, all heads, size] by cos and sin [T, half]. Mutates heads."""
    half = cos.shape[1]
    for row in numba.prange(len(heads)):
        for head in range(count):
            for i in range(half):
                first, second = heads[row, head, i], heads[row, head, half + i]
                heads[row, head, i] = first * cos[row, i] - second * sin[row, i]
                heads[row, head, half + i] = second * cos[row, i] + first * sin[row, i]


@numba.njit(parallel=True, fastmath=FAST, cache=True, nogil=True)
def add_low_rank(x: Any, a: Any, b: Any, units: Any, out: Any, offset: Any) -> None:
    """out[t, offset:] += sum over units u of token t of (x[t] . a[u, r]) b[u, r]; x [T, inputs], a [units, R, inputs],
    b [units, R, outputs], units [T, n] with -1 behind the last. Mutates out [T, *]."""
    inputs, outputs = a.shape[2], b.shape[2]
    for row in numba.prange(len(x)):
        for index in range(units.shape[1]):
            unit = units[row, index]
            if unit < 0:
                break
            for r in range(a.shape[1]):
                inward, outward, total = a[unit, r], b[unit, r], np.float32(0)
                for i in range(inputs):
                    total += x[row, i] * inward[i]
                for i in range(outputs):
                    out[row, offset + i] += total * outward[i]
