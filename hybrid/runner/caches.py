"""Caches: the tensors of the full-attention, window, state and encoder pools, allocated once.

Knows specs and sizes; not who owns which block or slot. Content of former owners stays until it is overwritten.
"""

from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch

from hybrid.models.context import AttentionCache, LayerCache, StateCache
from hybrid.models.ops.transfer import upload
from hybrid.pools.sizing import NULL_BLOCKS, PoolSizes
from hybrid.pools.specs import FullAttentionSpec, LayerSpec, ModelSpec, SlidingWindowSpec
from hybrid.scheduler.plan import Ints


class Caches:
    """layers[i] belongs to the i-th kind of memory, in the order of `spec.layers`, of which a layer may have several.

    `encoder` [encoder_tokens, hidden_size] where the model sees images.
    """

    def __init__(self, spec: ModelSpec, sizes: PoolSizes, device: torch.device) -> None:
        kinds = [kind for layer in spec.layers for kind in layer]
        self.layers: tuple[LayerCache, ...] = tuple(_allocate(kind, sizes, device) for kind in kinds)
        self._full: list[torch.Tensor] = []
        self._window: list[torch.Tensor] = []
        self._state: list[torch.Tensor] = []
        for cache, kind in zip(self.layers, kinds):
            if isinstance(cache, StateCache):
                self._state += [cache.conv, cache.ssm]
            elif isinstance(kind, FullAttentionSpec):
                self._full.append(cache.kv)
            else:
                self._window.append(cache.kv)
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
        return bool(self._state)

    def tensors(self) -> list[torch.Tensor]:
        """Every pool tensor."""
        return [*self._full, *self._window, *self._state, *([] if self.encoder is None else [self.encoder])]

    def copy_full(self, pairs: Ints) -> None:
        """Mutates: block pairs[i, 0] -> block pairs[i, 1] in every full-attention layer."""
        _copy(self._full, pairs)

    def copy_window(self, pairs: Ints) -> None:
        """Mutates: block pairs[i, 0] -> block pairs[i, 1] in every sliding-window layer."""
        _copy(self._window, pairs)

    def copy_states(self, pairs: Ints) -> None:
        """Mutates: slot pairs[i, 0] -> slot pairs[i, 1] in every recurrent layer."""
        _copy(self._state, pairs)


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


def _allocate(spec: LayerSpec, sizes: PoolSizes, device: torch.device) -> LayerCache:
    if isinstance(spec, FullAttentionSpec | SlidingWindowSpec):
        blocks = sizes.num_full_blocks if isinstance(spec, FullAttentionSpec) else sizes.num_window_blocks
        shape = (blocks + NULL_BLOCKS, 2, spec.num_kv_heads, sizes.block_size, spec.head_size)  # the last stays zero
        return AttentionCache(_zeros(shape, spec.dtype, device))
    channels, tail = spec.conv_shape
    return StateCache(
        conv=_zeros((sizes.num_state_slots, tail, channels), spec.conv_dtype, device),
        ssm=_zeros((sizes.num_state_slots, *(spec.ssm_shape or (0,))), spec.ssm_dtype, device),
    )


def _copy(tensors: list[torch.Tensor], pairs: Ints) -> None:
    if len(pairs) == 0 or not tensors:
        return
    source, destination = upload(pairs.T, tensors[0].device)
    for tensor in tensors:
        tensor[destination] = tensor[source]
