"""Caches: the tensors of the full-attention, window, state and encoder pools, allocated once.

Knows specs and sizes; not who owns which block or slot. Content of former owners stays until it is overwritten.
"""

from collections import Counter
from collections.abc import Iterator
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch

from hybrid.models.context import AttentionCache, LayerCache, StateCache
from hybrid.models.ops.transfer import upload
from hybrid.pools.sizing import NULL_BLOCKS, PoolSizes
from hybrid.pools.specs import FullAttentionSpec, MambaSpec, ModelSpec, SlidingWindowSpec
from hybrid.scheduler.plan import Ints

COPIED_BYTES = 64 * 2**20  # of states that lie beside the pools while they are copied, unless one layer's are more


class Caches:
    """layers[i] belongs to the i-th kind of memory, in the order of `spec.layers`, of which a layer may have several.

    `encoder` [encoder_tokens, hidden_size] where the model sees images.
    """

    def __init__(self, spec: ModelSpec, sizes: PoolSizes, device: torch.device) -> None:
        kinds = [kind for layer in spec.layers for kind in layer]
        self._full: list[torch.Tensor] = []
        self._window: list[torch.Tensor] = []
        self._state: list[torch.Tensor] = []  # [layers of a kind, slots, ...]: one copy does for all of them
        states: dict[MambaSpec, Iterator[StateCache]] = {}
        for mixer, count in Counter(kind for kind in kinds if isinstance(kind, MambaSpec)).items():
            conv, ssm = _state_stacks(mixer, count, sizes, device)
            self._state += [stack for stack in (conv, ssm) if stack.numel()]
            states[mixer] = map(StateCache, conv, ssm)
        layers: list[LayerCache] = []
        for kind in kinds:
            if isinstance(kind, MambaSpec):
                layers.append(next(states[kind]))
                continue
            full = isinstance(kind, FullAttentionSpec)
            kv = _blocks(kind, sizes.num_full_blocks if full else sizes.num_window_blocks, sizes.block_size, device)
            (self._full if full else self._window).append(kv)
            layers.append(AttentionCache(kv))
        self.layers = tuple(layers)
        self.encoder: torch.Tensor | None = None
        if spec.encoder is not None:
            self.encoder = _zeros((sizes.encoder_tokens, spec.encoder.hidden_size), spec.encoder.dtype, device)

    @property
    def has_full(self) -> bool:
        return bool(self._full)

    @property
    def has_window(self) -> bool:
        return bool(self._window)

    @property
    def has_state(self) -> bool:
        return any(isinstance(cache, StateCache) for cache in self.layers)

    def tensors(self) -> list[torch.Tensor]:
        """Every pool tensor, layer by layer."""
        states = [cache for cache in self.layers if isinstance(cache, StateCache)]
        recurrent = [tensor for cache in states for tensor in (cache.conv, cache.ssm)]
        return [*self._full, *self._window, *recurrent, *([] if self.encoder is None else [self.encoder])]

    def copy_full(self, pairs: Ints) -> None:
        """Mutates: block pairs[i, 0] -> block pairs[i, 1] in every full-attention layer."""
        _copy(self._full, pairs)

    def copy_window(self, pairs: Ints) -> None:
        """Mutates: block pairs[i, 0] -> block pairs[i, 1] in every sliding-window layer."""
        _copy(self._window, pairs)

    def copy_states(self, pairs: Ints) -> None:
        """Mutates: slot pairs[i, 0] -> slot pairs[i, 1] in every recurrent layer."""
        if len(pairs):
            most = (max(1, COPIED_BYTES // (len(pairs) * stack[0, 0].nbytes)) for stack in self._state)  # layers
            _copy([part for stack, layers in zip(self._state, most) for part in stack.split(layers)], pairs, axis=1)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _zeros(shape: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    """On a CPU, pages that the system brings when they are first used; `torch.zeros` touches a whole pool at once."""
    size = prod(shape) * _dtype(dtype).itemsize
    if device.type != "cpu" or size == 0:
        return torch.zeros(shape, dtype=_dtype(dtype), device=device)
    return torch.frombuffer(mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS), dtype=_dtype(dtype)).view(shape)


def _blocks(
    spec: FullAttentionSpec | SlidingWindowSpec, count: int, block_size: int, device: torch.device
) -> torch.Tensor:
    shape = (count + NULL_BLOCKS, 2, spec.num_kv_heads, block_size, spec.head_size)  # the last stays zero
    return _zeros(shape, spec.dtype, device)


def _state_stacks(
    spec: MambaSpec, count: int, sizes: PoolSizes, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of `count` layers: conv, ssm."""
    (channels, tail), shape = spec.conv_shape, spec.ssm_shape or (0,)
    conv = _zeros((count, sizes.num_state_slots, tail, channels), spec.conv_dtype, device)
    return conv, _zeros((count, sizes.num_state_slots, *shape), spec.ssm_dtype, device)


def _copy(tensors: list[torch.Tensor], pairs: Ints, axis: int = 0) -> None:
    if len(pairs) == 0 or not tensors:
        return
    source, destination = upload(pairs.T, tensors[0].device)
    for tensor in tensors:
        tensor.index_copy_(axis, destination, tensor.index_select(axis, source))
