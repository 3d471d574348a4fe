"""WorkingMemory: what an engine on a GPU holds beside weights and pools, counted from the blueprint.

Starting engine and planner ask the same here, so that memory does not run out under load. What a layer holds was read
off `models/layers/` and `models/ops/triton/`, and is compared with the tensors of whole steps of every model
(tests/models/triton/test_working_memory.py). T tokens, R rows of a step. Knows no pools.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from hybrid.models.blueprint.decoder import Plain
from hybrid.models.blueprint.experts import MoE
from hybrid.models.blueprint.model import Model
from hybrid.models.blueprint.parts import MLP, Attention
from hybrid.models.blueprint.per_layer import PerLayerInput
from hybrid.models.blueprint.recurrent import RGLRU, GatedDeltaNet, Mamba1, Mamba2, ShortConv
from hybrid.models.blueprint.zamba2 import SharedBlock, SharedHybrid
from hybrid.pools.sizing import blocks_for
from hybrid.pools.specs import dtype_bytes
from hybrid.scheduler.config import SchedulerConfig

FLOAT = 4  # bytes of float32
BLOCK = 64  # tokens of a chunk that recurrences take together; every chunk begins a new one
SAMPLING = 30  # bytes per logit: float32, what is changed of it, its probabilities, their sums in float64
INDICES = 1024  # bytes per token: its id and positions, which keys it sees, its adapter, cosines of a rope's angles
PROGRAMS = 4 * 304  # that keep the largest GPU busy; see `ops/triton/device.py`
TILE = 128  # queries, times heads, of a tile of attention
TILE_ELEMENTS = 32768  # queries, times the size of heads
LEAST_SPLITS = 4  # of a row that a graph replays
GROWTH = 1.25  # by which scratch memory exceeds what was asked for; see `ops/workspace.py`
MOST_GRAPH_ROWS = 512  # see `runner/decode_graphs.py`
GRAPH_BYTES = 8 * 2**20  # of one graph's own, that CUDA keeps; an assumption
VISION_ROWS = 8  # of a patch's size, that a block of a vision tower holds


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """Bytes. layers: of a step with the most tokens. sampling: of logits for all rows. encoder: of a step's images.
    scratch: of keys that several programs share. tables: of blocks. graphs: of CUDA graphs."""

    layers: int
    sampling: int
    encoder: int
    scratch: int
    tables: int
    graphs: int

    @property
    def total(self) -> int:
        """Images, layers and sampling come one after the other, and use the same memory."""
        return max(self.layers, self.sampling, self.encoder) + self.scratch + self.tables + self.graphs

    def __str__(self) -> str:
        parts = {
            "layers": self.layers,
            "sampling": self.sampling,
            "images": self.encoder,
            "split keys": self.scratch,
            "block tables": self.tables,
            "CUDA graphs": self.graphs,
        }
        said = ", ".join(f"{name} {size:,}" for name, size in parts.items() if size)
        return f"{self.total:,} bytes ({said})"


def working_memory(
    model: Model,
    dtype: str,
    config: SchedulerConfig,
    *,
    max_num_seqs: int,
    max_model_len: int,
    block_size: int,
    max_lora_rank: int = 0,
    graphs: bool = True,
) -> WorkingMemory:
    """Of one device. dtype: computed in. max_lora_rank: 0: there are no adapters. graphs: whether decode steps are
    captured."""
    tokens, rows, itemsize = config.max_num_batched_tokens, max_num_seqs, dtype_bytes(dtype)
    hidden = tokens * model.decoder.hidden_size * itemsize
    layers = layer_bytes(model, tokens, min(rows, tokens), itemsize)
    layers += tokens * _choices(model) * -(-max_lora_rank // 16) * 16 * FLOAT
    captured = min(rows, MOST_GRAPH_ROWS) if graphs else 0
    in_graphs = 0
    if captured:
        # they share the memory of the largest, but for what each gives; sizes are every 8th at least
        sizes = (4 + captured // 8) * (2 if max_lora_rank else 1)  # again for rows with adapters
        given = sizes * captured * model.decoder.hidden_size * FLOAT
        in_graphs = layer_bytes(model, captured, 0, itemsize) + given + sizes * GRAPH_BYTES
        splits = LEAST_SPLITS * captured
        in_graphs += _attention(model, lambda heads, kv: max(splits, captured + PROGRAMS // kv) * heads)
    table = (rows + 1) * (blocks_for(max_model_len, block_size) + 1) * FLOAT
    return WorkingMemory(
        layers=layers,
        sampling=hidden + rows * model.decoder.vocab_size * SAMPLING,
        encoder=0 if model.vision is None else encoder_bytes(model, config.encoder_budget, itemsize),
        scratch=max(_attention(model, lambda heads, kv: (rows + PROGRAMS // kv) * heads), _split_chunks(model)),
        tables=4 * table,  # full and window, on the device all the time and uploaded for a step
        graphs=in_graphs,
    )


def layer_bytes(model: Model, num_tokens: int, num_chunks: int, itemsize: int) -> int:
    """Of a forward pass over so many tokens, in so many chunks at most; 0: every token is a row of its own."""
    design = model.decoder
    blocks = 0 if num_chunks == 0 else num_tokens // BLOCK + min(num_chunks, num_tokens // 2)
    part = max((_layer(part, num_tokens, blocks, itemsize) for part in design.plain_parts()), default=0)
    # embeddings, the stream, its norm, and what another part of the layer gave
    size = design.hidden_size * (itemsize * 3 + (FLOAT if design.residual_float32 else itemsize))
    if model.vision is not None:
        size += (1 + design.deepstack) * design.hidden_size * itemsize
    if (inputs := design.per_layer) is not None:
        size += inputs.num_layers * inputs.size * itemsize
        part = max(part, 4 * num_tokens * inputs.num_layers * inputs.size * itemsize)
    return num_tokens * (size + INDICES) + part


def _layer(part: Plain, tokens: int, blocks: int, itemsize: int) -> int:
    """Bytes that one layer's part holds at most, its result included."""
    match part:
        case Attention():
            queries, values = part.num_heads * part.head_dim, part.num_kv_heads * part.head_dim
            size = 2 * queries + 2 * values + part.hidden_size
            if part.output_gate:
                size = max(size, 6 * queries + 4 * values)
            if part.values_are_keys:
                size = max(size, 2 * queries + 3 * values)
            return tokens * size * itemsize
        case MLP():
            return tokens * ((3 if part.gated else 2) * part.intermediate_size + part.hidden_size) * itemsize
        case MoE():
            width = part.hidden_size if part.latent is None else part.latent.size
            routed = part.top_k * (part.intermediate_size + width) * itemsize + FLOAT * width
            routed += 0 if part.latent is None else width * itemsize
            shared = 0 if part.shared is None else FLOAT * 2 * part.hidden_size
            shared += 0 if part.shared is None else _layer(part.shared, 1, 0, itemsize)
            router = FLOAT * (part.hidden_size + 3 * part.num_experts)
            return tokens * (max(routed, shared, router) + 2 * part.hidden_size * itemsize)
        case Mamba1():
            inner, maps = part.inner_size, 2 * (part.dt_rank + 2 * part.state_size) * itemsize
            scanned = tokens * (inner * (3 * itemsize + 2 * FLOAT) + maps)
            scanned += blocks * inner * (part.state_size + 1) * FLOAT
            return max(scanned, tokens * (inner * (3 * itemsize + 4 * FLOAT) + maps))
        case Mamba2():
            inner, heads = part.num_heads * part.head_dim, part.num_heads
            maps = 2 * part.n_groups * part.state_size
            read = ((2 * inner + maps + heads) + (inner + maps)) * itemsize + heads * FLOAT
            scanned = tokens * (read + inner * FLOAT)
            scanned += blocks * (inner * part.state_size + heads * BLOCK) * FLOAT
            return max(scanned, tokens * (read + 4 * inner * FLOAT))
        case GatedDeltaNet():
            keys, values, heads = part.num_k_heads * part.k_head_dim, part.value_size, part.num_v_heads
            projected = (2 * keys + 2 * values + 2 * heads) * itemsize
            read = projected + (2 * keys + values + 3 * keys + 2 * heads) * FLOAT
            wide = heads * part.k_head_dim  # of what is read before each token
            scanned = tokens * (read + values * FLOAT)
            scanned += blocks * (BLOCK * (heads + values + wide) + wide * part.v_head_dim) * FLOAT
            return max(scanned, tokens * (read + 4 * values * FLOAT))
        case RGLRU():
            return tokens * part.width * (4 * itemsize + 8 * FLOAT) + 2 * blocks * part.width * FLOAT
        case ShortConv():
            return tokens * 5 * part.hidden_size * itemsize
        case PerLayerInput():
            return tokens * (3 * part.size + part.hidden_size) * itemsize
        case SharedHybrid():
            hidden, block = part.mixer.hidden_size, part.block
            heads = block.head_dim * (3 * block.num_heads + 5 * block.num_kv_heads)
            shared = tokens * (max(heads, 7 * block.intermediate_size) + 5 * hidden) * itemsize
            return max(shared, _layer(part.mixer, tokens, blocks, itemsize) + 3 * tokens * hidden * itemsize)


def encoder_bytes(model: Model, tokens: int, itemsize: int) -> int:
    """Of a call of the vision tower for images of so many tokens together."""
    assert model.vision is not None
    tensors = model.vision.tensors
    matrices = [shape for shape in tensors.values() if len(shape) == 2]
    patches = [shape for name, shape in tensors.items() if "patch" in name and len(shape) >= 2]
    hidden = patches[0][0] if patches else min(shape[0] for shape in matrices)
    pixels = prod(patches[0][1:]) if patches else hidden
    # patches that become one token: as a projection joins them, or where each has a position
    joined = max(shape[1] // hidden for shape in matrices)
    places = max((shape[0] for name, shape in tensors.items() if "pos" in name and len(shape) == 2), default=0)
    count = tokens * max(1, joined, places // model.vision.tokens.most)
    widest = max(shape[0] for shape in matrices if shape[0] != places)
    patch = (VISION_ROWS * hidden + 2 * widest) * itemsize + pixels * (itemsize + FLOAT)
    return count * patch + 2 * tokens * (1 + model.decoder.deepstack) * model.decoder.hidden_size * FLOAT


def _choices(model: Model) -> int:
    """Most experts of a token; 1 where there are none."""
    return max((part.top_k for part in model.decoder.plain_parts() if isinstance(part, MoE)), default=1)


def _attention(model: Model, places: Callable[[int, int], int]) -> int:
    """Scratch bytes for so many (heads, key-value heads -> parts of queries) of the attention that needs most."""
    parts = _attentions(model)
    return int(GROWTH * max((places(heads, kv) * (size + 2) * FLOAT for heads, kv, size in parts), default=0))


def _split_chunks(model: Model) -> int:
    """Scratch bytes of chunks whose keys are split: at most twice the tiles that keep the device busy."""
    sizes = [min(TILE * size, TILE_ELEMENTS) * (1 + 2 / size) for _, _, size in _attentions(model)]
    return int(GROWTH * 2 * PROGRAMS * FLOAT * max(sizes, default=0))


def _attentions(model: Model) -> list[tuple[int, int, int]]:
    """Heads, key-value heads and their size, of all attentions."""
    parts = (part.block if isinstance(part, SharedHybrid) else part for part in model.decoder.plain_parts())
    attentions = (part for part in parts if isinstance(part, Attention | SharedBlock))
    return [(part.num_heads, part.num_kv_heads, part.head_dim) for part in attentions]
