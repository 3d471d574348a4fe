"""Penalties: logits changed by what a request has already said, and by its own biases. Semantics as in vLLM.

Functions change the logits they are given in place; rows of the logits are the first dimension.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.models.ops.transfer import upload
from hybrid.scheduler.plan import Ints, TokenIds

from .row_mirror import RowMirror


def _counts(token_ids: TokenIds, begin: Ints, end: Ints, like: torch.Tensor) -> torch.Tensor:
    """How often each token stands at positions begin[i] .. end[i] - 1 of row i: [n, vocab_size]."""
    width = int(end.max(initial=0))
    column = np.arange(width)
    inside = (column >= begin[:, None]) & (column < end[:, None])
    known = np.where(inside, token_ids[:, :width], 0)  # elsewhere there may be tokens of former owners, also UNKNOWN
    ids = upload(known.astype(np.int64), like.device)
    ones = upload(inside, like.device).to(like.dtype)
    return torch.zeros_like(like).scatter_add_(1, ids, ones)


def apply_penalties(logits: torch.Tensor, rows: Ints, positions: Ints, mirror: RowMirror) -> None:
    """Mutates logits [n, vocab_size] of rows `rows` for the token at `positions`.

    Repetition: logits of tokens in prompt or output divided (positive) or multiplied (negative) by the penalty.
    Frequency and presence: subtracted per occurrence, and once, of tokens in the output.
    """
    columns = mirror.sampling
    history = mirror.token_ids[rows]
    prompt = np.minimum(mirror.num_prompt_tokens[rows], positions)

    def column(values: NDArray[np.float32]) -> torch.Tensor:
        return upload(values[rows], logits.device)[:, None]

    said = _counts(history, prompt, positions, logits)
    seen = (said > 0) | (_counts(history, np.zeros_like(prompt), prompt, logits) > 0)
    repetition = column(columns.repetition)
    logits.copy_(torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits))
    logits.sub_(said * column(columns.frequency))
    logits.sub_((said > 0) * column(columns.presence))


def apply_token_bias(logits: torch.Tensor, rows: Ints, positions: Ints, mirror: RowMirror) -> None:
    """Mutates logits [num_logits, vocab_size]: logit_bias added; stop tokens of rows short of min_tokens -inf."""
    columns = mirror.sampling
    special = np.flatnonzero(columns.special[rows])
    add_at, add_ids, add_values = [], [], []
    ban_at, ban_ids = [], []
    for k in special.tolist():
        row = int(rows[k])
        bias = columns.token_bias[row]
        add_at.append(np.full(len(bias.token_ids), k))
        add_ids.append(bias.token_ids)
        add_values.append(bias.biases)
        if positions[k] - mirror.num_prompt_tokens[row] < columns.min_tokens[row]:
            ban_at.append(np.full(len(bias.stop_ids), k))
            ban_ids.append(bias.stop_ids)

    def joined(parts: list[Ints]) -> torch.Tensor:
        return upload(np.concatenate(parts), logits.device)

    if add_at:
        values = upload(np.concatenate(add_values), logits.device).to(logits.dtype)
        logits.index_put_((joined(add_at), joined(add_ids)), values, accumulate=True)
    if ban_at:
        banned = logits.new_full((), float("-inf"))
        logits.index_put_((joined(ban_at), joined(ban_ids)), banned)


def apply_bitmask(logits: torch.Tensor, which: Ints, bitmask: NDArray[np.int32]) -> None:
    """Mutates: rows `which` of the logits keep the tokens whose bit is set in bitmask [len(which), ceil(vocab / 32)],
    token t being bit t % 32 of word t // 32; all others become -inf."""
    bits = np.unpackbits(np.ascontiguousarray(bitmask).view(np.uint8), axis=1, bitorder="little")
    forbidden = upload(bits[:, : logits.shape[1]] == 0, logits.device)
    index = upload(which, logits.device)
    logits[index] = logits[index].masked_fill(forbidden, float("-inf"))
