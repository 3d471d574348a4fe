"""ForwardContext: everything one forward pass over a mixed batch reads besides weights and hidden states.

An explicit argument, never a global. Rows with exactly one token ("decode rows") come first, longer chunks after them,
so that every operation splits its tokens with one slice. Numbers that steer control flow stay on the host as numpy
arrays; an operation's `plan` uploads what its kernels need, once per step. DecodeContext is the same for decode rows
alone, with everything on the device, for graphs. This file knows neither requests nor pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:  # it needs what is here
    from .ops.decode_lora import DecodeLora
    from .ops.lora import LoraBatch

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """Keys and values of one layer in blocks: kv[block, 0] holds its keys, kv[block, 1] its values.

    Head-major inside a block, so that a gather of blocks leaves each head's keys contiguous: attention reads them 2 to
    3 times faster on a CPU than token-major ones. The last block is nobody's: it holds zeros for ever, and what lies
    past a row's end is read from it.
    """

    kv: torch.Tensor  # [num_blocks + 1, 2, num_kv_heads, block_size, head_size]

    @property
    def null_block(self) -> int:
        return int(self.kv.shape[0]) - 1


@dataclass(frozen=True, slots=True)
class StateCache:
    """Recurrent states of one layer by slot: the last kernel - 1 inputs of the convolution, oldest first, and the SSM
    state. Channels lie innermost, so that a step of the convolution is a few products of whole rows."""

    conv: torch.Tensor  # [num_slots, kernel - 1, channels]
    ssm: torch.Tensor  # [num_slots, *ssm_shape of the layer's spec], float32; no elements where it keeps none


LayerCache = AttentionCache | StateCache


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Where the batch's tokens live in the blocks of one pool (full attention, or sliding window). On the host."""

    table: Ints  # [num_rows, >= blocks of the longest row], logical block position // block_size -> block
    slot_mapping: Ints  # [num_tokens], block * block_size + offset
    block_size: int


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Recurrent states to copy while the batch runs: of batch row rows[i], after lengths[i] tokens of its chunk."""

    rows: Ints  # [n] index into the batch
    lengths: Ints  # [n] 1 .. number of the row's tokens in this batch
    slots: Ints  # [n] destination


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Tokens of the batch that take an image embedding instead of their token embedding. Further levels of it, side by
    side, are added behind the first layers of a decoder that has them (`blueprint.decoder.Decoder.deepstack`).

    groups: whole images whose tokens also see each other's later ones, in every layer; a window limits what they see
    before them. Batch row, first flat token and end of each. None: attention is causal everywhere.
    """

    indices: torch.Tensor  # [n] int64 into the flat batch
    embeddings: torch.Tensor  # [n, hidden_size * (1 + levels)]
    groups: Ints | None = None  # [images, 3], host


class DeferredStates:
    """Rows whose final state depends on how many of their tokens will count: rows with draft tokens.

    The forward pass leaves their state slots as they were and records how to advance them; `commit` does it. Rows are
    indices into the batch, with two tokens or more each.
    """

    def __init__(self, rows: Ints) -> None:
        self.rows = rows
        self._advances: list[Callable[[Ints], None]] = []

    def record(self, advance: Callable[[Ints], None]) -> None:
        """Mutates: `advance(lengths)` will write the states after the first lengths[i] tokens of rows[i]."""
        self._advances.append(advance)

    def commit(self, lengths: Ints) -> None:
        """Mutates the caches of the batch: the state of rows[i] is now the one after lengths[i] >= 1 of its tokens."""
        assert lengths.shape == self.rows.shape
        for advance in self._advances:
            advance(lengths)


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One mixed batch. Row i owns flat tokens query_start_loc[i] .. query_start_loc[i + 1] - 1.

    Its first token stands at position num_computed_tokens[i]; 0 there means: start from nothing, whatever the row's
    state slot holds. `full` and `window` are None where the model has no such layer. caches[i] belongs to the i-th spec
    of all layers. Where some row has images and the ropes know three positions per token (time, height, width), these
    are `image_positions`; None: all three are `positions`.
    """

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    query_start_loc: Ints  # [num_rows + 1], host
    num_computed_tokens: Ints  # [num_rows], host
    num_decodes: int  # rows 0 .. num_decodes - 1 have one token each
    state_slots: Ints  # [num_rows], host
    full: BlockTables | None
    window: BlockTables | None
    snapshots: Snapshots
    images: ImageTokens | None
    caches: tuple[LayerCache, ...]
    deferred: DeferredStates | None = None
    lora: LoraBatch | None = None
    image_positions: torch.Tensor | None = None  # [3, num_tokens] int64

    @property
    def num_rows(self) -> int:
        return len(self.num_computed_tokens)

    @property
    def query_lens(self) -> Ints:  # [num_rows]
        return np.diff(self.query_start_loc)

    @property
    def seq_lens(self) -> Ints:  # [num_rows], tokens once this batch has run
        return self.num_computed_tokens + self.query_lens


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """One token of each of D rows, with everything on the device and where it stays, so that a graph can be replayed.

    Tables have a line per request row; the last is nobody's: its blocks are the null block and its slot is -1. A batch
    row of nobody's, at position 0, is padding: it sees zeros, starts from zeros, and what it computes goes nowhere.
    There are no snapshots, drafts or images. Where ropes know three positions per token, these are
    `image_positions`, all three the same: images lie behind the token.
    """

    token_ids: torch.Tensor  # [D] int64
    positions: torch.Tensor  # [D] int64
    rows: torch.Tensor  # [D] int64, lines of the tables
    full: torch.Tensor | None  # [num_rows + 1, blocks] int32
    window: torch.Tensor | None  # [num_rows + 1, blocks] int32
    state_slots: torch.Tensor  # [num_rows + 1] int64
    caches: tuple[LayerCache, ...]
    image_positions: torch.Tensor | None = None  # [D] int64
    lora: DecodeLora | None = None
    images: ClassVar[None] = None

    @property
    def nobody(self) -> int:
        return len(self.state_slots) - 1


Context = ForwardContext | DecodeContext
