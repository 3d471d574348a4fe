"""Kernels for a CPU, compiled by numba: one decode step of attention and of Mamba-2, straight from the caches.

Each reads what it needs once and copies nothing; the torch versions gather, compute and write back in several passes.
Rows are shared out over threads. All arrays are float32 and contiguous; the references are `attention` and `ssd`.
"""

from typing import Any

import numba
import numpy as np


@numba.njit(parallel=True, fastmath={"reassoc", "contract", "arcp", "nsz"}, cache=True, nogil=True)
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
                total = np.exp(sinks[head * group + j] - highest[j])
            for t in range(end - begin):
                weight = np.exp(scores[j, t] - highest[j])
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


@numba.njit(parallel=True, fastmath={"reassoc", "contract", "arcp", "nsz"}, cache=True, nogil=True)
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
