"""Truncation: min-p, top-k and top-p as masks over logits, each a threshold on the logit, so ties stay together.

A threshold, not a rank: the kept set does not depend on the order in which a sort leaves equal logits.
"""

import torch

from hybrid.models.ops.choice import choose


def truncate(
    logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None
) -> None:
    """Mutates logits [n, vocab_size] (temperature applied): tokens cut off become -inf; at least one stays.

    top_k [n] int64 (0: all), top_p [n] and min_p [n] float32; None: no row has any. Order as in vLLM: min-p, then
    top-k, then top-p of what top-k left.
    """
    if min_p is not None:
        floor = logits.amax(dim=-1, keepdim=True) + torch.log(min_p)[:, None]  # log 0 is -inf: keeps all
        logits.masked_fill_(logits < floor, float("-inf"))
    if choose(logits.device) == "triton":
        _by_digits(logits, top_k, top_p)
        return
    if top_k is not None:
        limited, kept = _limits(logits, top_k)
        largest = logits.topk(int(kept.max()), dim=-1).values
        kth = largest.gather(1, kept[:, None] - 1)
        logits.masked_fill_((logits < kth) & limited[:, None], float("-inf"))
    if top_p is not None:
        logits.masked_fill_(logits < _top_p_threshold(logits, top_p), float("-inf"))


def _top_p_threshold(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest logit [n, 1] among the most likely tokens whose probabilities first sum to top_p < 1.

    The most likely few hundred nearly always reach top_p; only rows that do not are sorted further.
    """
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    threshold = torch.full_like(normaliser, float("-inf"))
    left = (top_p < 1).nonzero()[:, 0]
    for count in (256, 4096, logits.shape[1]):
        count = min(count, logits.shape[1])
        ordered = logits[left].topk(count, dim=-1).values  # descending
        sums = torch.exp(ordered - normaliser[left]).cumsum(dim=-1, dtype=torch.float64)
        wanted = top_p[left, None]
        before = (sums < wanted).sum(dim=-1, keepdim=True)  # tokens that do not yet reach top_p
        threshold[left] = ordered.gather(1, before.clamp(max=count - 1))
        left = left[before[:, 0] == count]
        if count == logits.shape[1] or len(left) == 0:
            break
    return threshold


def _limits(logits: torch.Tensor, top_k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are limited, and to how many tokens; 1 where they are not."""
    limited = (top_k > 0) & (top_k < logits.shape[1])
    return limited, top_k.masked_fill(~limited, 1)


def _by_digits(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None) -> None:
    """Mutates logits: top-k and top-p by Triton's kernels, without waiting for the device."""
    from hybrid.models.ops.triton.sampling import threshold  # triton is not installed everywhere

    if top_k is not None:
        limited, kept = _limits(logits, top_k)
        kth = threshold(logits, kept.double(), False)[:, None]
        logits.masked_fill_((logits < kth) & limited[:, None], float("-inf"))
    if top_p is not None:
        least = threshold(logits, top_p.double(), True)[:, None]
        logits.masked_fill_((logits < least) & (top_p < 1)[:, None], float("-inf"))
