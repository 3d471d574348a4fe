"""The causal depthwise convolution of recurrent layers over a mixed batch, in plain torch.

T tokens, D decode rows, R chunks, K kernel, C channels. A state is the last K - 1 inputs, oldest first.
"""

import torch

from .recurrent_plan import Chunks, Decodes


def conv_decodes(
    plan: Decodes, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, conv: torch.Tensor
) -> torch.Tensor:
    """x [D, C], weight [K, C], bias [C] -> [D, C]; advances conv [slots, K - 1, C]."""
    state = conv.index_select(0, plan.slots)  # [D, K - 1, C]
    if plan.fresh is not None:
        state.masked_fill_(plan.fresh, 0)
    tail = state.shape[1]
    out = x * weight[tail] if bias is None else torch.addcmul(bias, x, weight[tail])
    for k in range(tail):
        out.addcmul_(state[:, k], weight[k])
    after = torch.cat((state[:, 1:], x[:, None].to(conv.dtype)), dim=1)
    conv.index_copy_(0, plan.slots, after)
    if plan.copy_rows is not None and plan.copy_slots is not None:
        conv.index_copy_(0, plan.copy_slots, after.index_select(0, plan.copy_rows))
    return out


def conv_chunks(
    plan: Chunks, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, conv: torch.Tensor
) -> torch.Tensor:
    """x [tokens, C] -> [tokens, C]; advances conv and writes its snapshots."""
    tail = conv.shape[1]  # K - 1
    state = conv.index_select(0, plan.slots)  # [R, K - 1, C]
    if plan.fresh is not None:
        state.masked_fill_(plan.fresh, 0)
    # 1. chunk after chunk: K - 1 inputs before it, then its own
    seen = x.new_empty(plan.num_tokens + plan.num_rows * tail, x.shape[1])
    seen.index_copy_(0, plan.window_index + tail, x)
    seen.index_copy_(0, plan.state_index, state.view(-1, x.shape[1]).to(x.dtype))
    # 2. convolve as if it were one sequence; what mixes two chunks is not read
    length = seen.shape[0] - tail
    out = seen[:length] * weight[0] if bias is None else torch.addcmul(bias, seen[:length], weight[0])
    for k in range(1, tail + 1):
        out.addcmul_(seen[k : k + length], weight[k])
    # 3. the last K - 1 inputs seen by every state to write
    written = seen.index_select(0, plan.written_index).view(-1, tail, x.shape[1])
    conv.index_copy_(0, plan.written_slots, written.to(conv.dtype))
    return out if plan.num_rows == 1 else out.index_select(0, plan.window_index)
