"""Attention: the projections around an attention operation. Full or sliding is the operation's plan, not known here."""

import torch

from ..context import AttentionCache
from ..ops.dispatch import AttentionRun
from .linear import Linear
from .rotary import rotate


class Attention:
    """Grouped-query attention with rotary: [T, hidden_size] -> [T, hidden_size]. Weights as in the checkpoint."""

    def __init__(
        self,
        q: torch.Tensor,  # [num_heads * head_size, hidden_size]
        k: torch.Tensor,  # [num_kv_heads * head_size, hidden_size]
        v: torch.Tensor,
        o: torch.Tensor,  # [hidden_size, num_heads * head_size]
        head_size: int,
    ) -> None:
        self.num_heads = q.shape[0] // head_size
        self.num_kv_heads = k.shape[0] // head_size
        self.head_size = head_size
        self.qkv = Linear((q, k, v))
        self.out = Linear((o,))

    def __call__(self, x: torch.Tensor, rotary: torch.Tensor, run: AttentionRun, cache: AttentionCache) -> torch.Tensor:
        heads = self.qkv(x).view(x.shape[0], -1, self.head_size)  # queries, keys, values
        rotate(heads[:, : self.num_heads + self.num_kv_heads], rotary)
        key_value = heads[:, self.num_heads :].view(x.shape[0], 2, self.num_kv_heads, self.head_size)
        attended = run(heads[:, : self.num_heads], key_value, cache)
        return self.out(attended.reshape(x.shape[0], -1))
