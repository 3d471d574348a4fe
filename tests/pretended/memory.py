"""What lies on a pretended GPU (see `device`): tensors with their memory, streams, graphs."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Tensor(torch.Tensor):
    """Its values are `inside`, on the CPU. `memory` is one object for all tensors in the same memory."""

    inside: torch.Tensor
    memory: "Memory"
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, index: int, memory: "Memory") -> "Tensor":
        made: Tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("meta", index),
        )
        made.inside, made.memory = inner, memory
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", super().device.index)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} outside the pretended device")


class Stream:
    """Work in order. `seen`: up to which tick of other streams it comes after them."""

    def __init__(self) -> None:
        self.tick = 0
        self.seen: dict[Stream, int] = {}

    def wait_for(self, other: "Stream") -> None:
        for stream, tick in {**other.seen, other: other.tick}.items():
            self.seen[stream] = max(tick, self.seen.get(stream, 0))


class Memory:
    """What a tensor and its views share. stream, tick: of who wrote it last."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.stream: Stream | None = None
        self.tick = 0


class Graph:
    """A captured graph."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []  # function, arguments, options, result
        self.reads: list[weakref.ref[Memory]] = []  # what was there before

    def replay(self) -> None:
        assert all(memory() is not None for memory in self.reads), "a graph reads memory that was given back"
        for func, args, kwargs, out in self.calls:
            given = {storage_of(tensor) for tensor in tensors_in((args, kwargs))}
            for kept, made in zip(tensors_in(out), tensors_in(func(*args, **kwargs)), strict=True):
                if storage_of(kept) not in given:
                    kept.copy_(made)


def tensors_in(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
