"""A teacher's glances for the decoder: at which image token the answer to a question is to be read.

An auxiliary loss of the training only, like `hints.py`; nothing of it is in the checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybrid.models.reference import Attention, DecoderLayer, NativeReference, rotary_tables, rotate


def decode_with_glances(model: NativeReference, x: Tensor, glances: Tensor) -> tuple[Tensor, Tensor]:
    """`model.decode(x)`, and how far the first full-attention layer is from looking where the answer is.

    glances [G, 3]: row, position before the answer, position of the image token to look at. The loss is the mean
    negative log attention of the query heads of the first key-value head. It teaches where to look long before
    answers alone would.
    """
    loss = x.new_zeros(())
    pending = True
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        if pending and isinstance(layer.mixer, Attention) and layer.mixer.window is None and len(glances):
            loss, pending = glance_loss(layer.mixer, layer.input_norm(x), glances), False
        x = layer(x)
    hidden: Tensor = model.norm(x)
    return hidden, loss


def glance_loss(attention: Attention, x: Tensor, glances: Tensor) -> Tensor:
    """See decode_with_glances; x [B, T, D] is what the layer reads."""
    row, asking, target = glances.unbind(dim=1)
    tokens, group = x.shape[1], attention.num_heads // attention.num_kv_heads
    cos, sin = rotary_tables(tokens, attention.head_dim, attention.theta)
    query = attention.q_proj(x[row, asking]).view(len(row), -1, attention.head_dim)[:, :group]  # [G, group, head]
    query = rotate(query, cos[asking, None], sin[asking, None])
    key = attention.k_proj(x).view(x.shape[0], tokens, -1, attention.head_dim)[:, :, 0]  # [B, T, head]
    key = rotate(key, cos, sin)[row]
    scores = torch.einsum("ghd,gtd->ght", query, key) * attention.head_dim**-0.5
    later = torch.arange(tokens) > asking[:, None]
    attended = scores.masked_fill(later[:, None], float("-inf")).log_softmax(dim=-1)
    at_target = attended.gather(2, target[:, None, None].expand(-1, group, 1))
    loss: Tensor = -at_target.mean()
    return loss
