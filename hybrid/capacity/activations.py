"""Activations: about how much a step holds beside weights and pools, from the blueprint alone.

Layers run one after the other: the one that holds most counts. What each holds per token was read off the layers of
`models/`; the comparison with the CPU runner's peak is in tests/capacity/test_activations.py. Knows no pools.
"""

from hybrid.models.blueprint.decoder import Plain
from hybrid.models.blueprint.experts import MoE
from hybrid.models.blueprint.model import Model
from hybrid.models.blueprint.parts import MLP, Attention
from hybrid.models.blueprint.per_layer import PerLayerInput
from hybrid.models.blueprint.recurrent import RGLRU, GatedDeltaNet, Mamba1, Mamba2, ShortConv
from hybrid.models.blueprint.zamba2 import SharedHybrid
from hybrid.pools.specs import dtype_bytes

SCAN_BLOCK = 64  # tokens: chunks are scanned in blocks of so many
RESIDUAL = 4  # rows of the hidden size beside a layer's own: the stream, its norm, the layer's output, a copy
IMBALANCE = 2  # of experts: the busiest one has so many times the average


def activation_bytes(model: Model, num_tokens: int, num_seqs: int, dtype: str) -> int:
    """Of a step of so many tokens, and logits for so many requests. dtype: computed in; scans and logits: float32."""
    decoder = model.decoder
    itemsize, float32 = dtype_bytes(dtype), dtype_bytes("float32")
    layer = max((_plain(part) * itemsize + _scan(part) * float32 for part in decoder.plain_parts()), default=0)
    residual = RESIDUAL * decoder.hidden_size * (float32 if decoder.residual_float32 else itemsize)
    logits = 2 * num_seqs * decoder.vocab_size * float32
    return max(num_tokens * (residual + layer), logits)


def _plain(part: Plain) -> int:
    """Elements per token in the dtype that the model computes in."""
    match part:
        case Attention():
            queries, values = part.num_heads * part.head_dim, part.num_kv_heads * part.head_dim
            return (4 if part.output_gate else 3) * queries + 5 * values
        case MLP():
            return (3 if part.gated else 2) * part.intermediate_size
        case MoE():
            width = part.hidden_size if part.latent is None else part.latent.size
            share = min(1.0, IMBALANCE * part.top_k / part.num_experts)
            shared = 0 if part.shared is None else _plain(part.shared)
            expert = (3 if part.gated else 2) * part.intermediate_size + 2 * width
            return 2 * width + max(shared, int(share * expert))
        case Mamba1():
            return 3 * part.inner_size
        case Mamba2():
            inner, maps = part.num_heads * part.head_dim, part.n_groups * part.state_size
            return 2 * inner + 2 * maps + part.num_heads
        case GatedDeltaNet():
            return 2 * part.num_k_heads * part.k_head_dim + 2 * part.num_v_heads * part.v_head_dim
        case RGLRU():
            return 3 * part.width
        case ShortConv():
            return 5 * part.hidden_size
        case PerLayerInput():
            return 3 * part.size
        case SharedHybrid():
            block = part.block
            heads = block.head_dim * (3 * block.num_heads + 5 * block.num_kv_heads)
            return 2 * part.mixer.hidden_size + max(heads, 3 * block.intermediate_size, _plain(part.mixer))


def _scan(part: Plain) -> int:
    """Elements per token of what a recurrence makes of a chunk."""
    match part:
        case Mamba1():
            return 6 * part.inner_size + 3 * part.inner_size * part.state_size // SCAN_BLOCK
        case Mamba2():
            inner, maps = part.num_heads * part.head_dim, part.n_groups * part.state_size
            states = 3 * inner * part.state_size // SCAN_BLOCK
            return 6 * inner + 6 * maps + 2 * part.num_heads * SCAN_BLOCK + states
        case GatedDeltaNet():
            keys, values = part.num_v_heads * part.k_head_dim, part.num_v_heads * part.v_head_dim
            maps = part.num_k_heads * part.k_head_dim
            states = keys * part.v_head_dim // SCAN_BLOCK
            return 4 * maps + 3 * keys + 6 * values + 4 * part.num_v_heads * SCAN_BLOCK + states
        case RGLRU():
            return 10 * part.width
        case SharedHybrid():
            return _scan(part.mixer)
        case _:
            return 0
