"""A GPU that is only pretended: tensors that say "cuda", and really lie and compute on the CPU, as strict as a GPU is.

What mixes devices, reads what another stream writes, or overwrites what is still to be copied fails. Where the host
would wait for the device is counted: `waits`. Copies to the host arrive only once somebody waited. While a graph is
captured, what a GPU could not capture fails; a replay computes everything again, from what lies where it lay.
Knows nothing of models, nor of `torch.cuda` (see `cuda`). Inside torch its tensors are some of the meta
device: those with an index.
"""

import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .memory import Graph, Memory, Stream, Tensor, storage_of, tensors_in

WAITING = {  # operations for whose result the host asks
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select"),
    *("_unique2", "unique_dim", "unique_consecutive", "bincount", "histc", "one_hot"),
}
INDEXED = {"index", "index_put", "index_put_"}
COPIES = {"_to_copy", "to", "cpu"}
OURS = re.compile(f"{re.escape(str(Path(__file__).parents[2]))}/((hybrid|models|encoders|adapters)/.*)")


class PretendedDevice(TorchDispatchMode):
    """Inside it, "cuda" is there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: list[str] = []  # of the host for the device, since the start
        self.launched: list[str] = []  # Triton's kernels
        self.current = 0  # device
        self.stream = Stream()
        self.num_done = 0  # of all operations, since the start: those that somebody knows are done
        self.num_started = 0
        self._pinned: dict[int, Any] = {}  # storages by where they lie; kept, so that nothing else comes there
        self._memories: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        self._leaving: list[tuple[torch.Tensor, torch.Tensor]] = []  # pinned sources, and what was copied from them
        self._arriving: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # number, destination, what will be there
        self._graph: Graph | None = None

    def wait(self, what: str, until: int | None = None) -> None:
        """The host waits until the device has done everything; or so many operations."""
        if until is not None and until <= self.num_done:
            return
        frame: Any = sys._getframe(1)
        while frame is not None and not OURS.match(frame.f_code.co_filename):
            frame = frame.f_back
        place = OURS.match(frame.f_code.co_filename) if frame is not None else None
        where = f" ({place[1]}:{frame.f_lineno})" if place else ""
        assert self._graph is None, f"{what} while a graph is captured{where}"
        self.waits.append(f"{what}{where}")
        for source, copied in self._leaving:
            assert torch.equal(_bytes(source), _bytes(copied)), "the host wrote what was still to be copied"
        self.num_done = self.num_started if until is None else until
        arrived = [copy for copy in self._arriving if copy[0] <= self.num_done]
        with torch.inference_mode():  # as it may have been when the copy began
            for _, destination, values in arrived:
                destination.copy_(values)
        self._leaving, self._arriving = [], self._arriving[len(arrived) :]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, schema = func._schema.name.removeprefix("aten::"), func._schema.arguments
        kwargs = dict(kwargs or {})
        given = {argument.name: value for argument, value in zip(schema, args)} | kwargs
        if name in ("pin_memory", "_pin_memory"):
            return self._pin(given["self"].clone())
        if name == "is_pinned":
            return given["self"].untyped_storage().data_ptr() in self._pinned
        if name == "record_stream":
            return None
        if name in COPIES:
            return self._copied(given)
        if name == "copy_" and isinstance(given["self"], Tensor) != isinstance(given["src"], Tensor):
            return self._copy(given["self"], given["src"], bool(given.get("non_blocking")))
        tensors = tensors_in((args, kwargs))
        ours = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        there, pinned = is_there(given.get("device")), kwargs.pop("pin_memory", None)
        if not ours and not there:
            made = func(*args, **kwargs)
            return self._pin(made) if pinned else made
        for tensor in tensors:  # a single number of the host's is an argument
            is_index = name in INDEXED and isinstance(given["self"], Tensor) and tensor is not given.get("values")
            if is_index and not isinstance(tensor, Tensor):
                self.wait("an index of the host's")
            alike = there or is_index or isinstance(tensor, Tensor) or tensor.ndim == 0
            assert alike, f"{name} of tensors of the device and the host"
        if name in WAITING or _asks_for_sizes(name, given):
            self.wait(name)
        if there:
            kwargs["device"] = torch.device("cpu")
        written = [given[one.name] for one in schema if one.alias_info is not None and one.alias_info.is_write]
        return self._run(func, args, kwargs, given["device"].index if there else ours[0].device.index, written)

    def launch(self, kernel: Any, run: Callable[..., None], args: Any, options: Mapping[str, Any]) -> None:
        """A kernel of Triton's, in its interpreter."""
        tensors, name = tensors_in((args, options)), kernel.fn.__name__
        for tensor in tensors:
            assert isinstance(tensor, Tensor), f"{name} is given a tensor of the host"
            assert tensor.device.index == self.current, f"{name} is launched on another device than its tensors'"
        self.launched.append(name)
        self._run(lambda *a, **k: run(kernel, *a, **k), args, options, self.current, tensors)

    def wrap(self, inner: torch.Tensor, index: int = 0) -> Tensor:
        """The tensor as one of the device's."""
        storage = inner.untyped_storage()
        memory = self._memories.setdefault(storage._cdata, Memory(storage))
        with torch.inference_mode(inner.is_inference()):
            return Tensor(inner, index, memory)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Mutates: what is computed inside goes into this stream."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def capture(self, graph: Graph) -> Iterator[None]:
        """Mutates the graph: what is computed inside belongs to it."""
        before, self._graph = set(self._memories), graph
        try:
            yield
        finally:
            self._graph = None
        read = {storage_of(tensor) for _, args, kwargs, _ in graph.calls for tensor in tensors_in((args, kwargs))}
        graph.reads += [weakref.ref(self._memories[key]) for key in read & before]

    def _run(self, func: Any, args: Any, kwargs: Any, index: int, written: Any) -> Any:
        """Computes on the CPU. Fails where the current stream uses what another one writes at the same time."""
        ours = [tensor for tensor in tensors_in((args, kwargs)) if isinstance(tensor, Tensor)]
        assert all(tensor.device.index == index for tensor in ours), f"{func} of tensors of several devices"
        inner_args, inner_kwargs = tree_map_only(Tensor, lambda tensor: tensor.inside, (args, kwargs))
        out = func(*inner_args, **inner_kwargs)
        if self._graph is not None:
            self._graph.calls.append((func, inner_args, inner_kwargs, out))
        same = {id(tensor.inside): tensor for tensor in ours}

        def wrapped_as(made: torch.Tensor) -> Tensor:
            return same[id(made)] if id(made) in same else self.wrap(made, index)

        wrapped = tree_map_only(torch.Tensor, wrapped_as, out)
        known = {id(tensor.memory) for tensor in ours}
        if self._graph is not None:  # nothing runs yet
            return wrapped
        self._order(
            ours, [*tensors_in(written), *(made for made in tensors_in(wrapped) if id(made.memory) not in known)]
        )
        return wrapped

    def _order(self, read: Sequence[Any], written: Sequence[Any]) -> None:
        stream = self.stream
        stream.tick += 1
        self.num_started += 1
        for memory in (tensor.memory for tensor in read):
            if memory.stream not in (None, stream):
                assert stream.seen.get(memory.stream, 0) >= memory.tick, "a stream reads what another one still writes"
        for memory in (tensor.memory for tensor in written):
            memory.stream, memory.tick = stream, stream.tick

    def _copied(self, given: Mapping[str, Any]) -> torch.Tensor:
        """`to`, in all its spellings."""
        source, other = given["self"], given.get("other")
        device = given.get("device") if other is None else other.device
        dtype = given.get("dtype") if other is None else other.dtype
        dtype, copy, stays = dtype or source.dtype, bool(given.get("copy")), isinstance(source, Tensor)
        goes = stays if device is None else is_there(device)
        if not stays and not goes:
            kept: torch.Tensor = source.to(device=device, dtype=dtype, copy=copy)
            return kept
        index = source.device.index if device is None or not goes else device.index
        if stays:
            cast = {"dtype": dtype, "copy": copy}
            source = self._run(torch.Tensor.to, (source,), cast, source.device.index, ())
        if stays and goes:
            return source if source.device.index == index else self.wrap(source.inside.clone(), index)
        free = bool(given.get("non_blocking"))
        if goes:
            made = self._copy(self.wrap(torch.empty_like(source), index), source, free)
            cast_there: torch.Tensor = self._run(torch.Tensor.to, (made,), {"dtype": dtype}, index, ())
            return cast_there
        host = torch.empty_like(source.inside)
        return self._copy(self._pin(host) if free else host, source, free)

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        """Between host and device. Nobody waits for copies of pinned memory."""
        assert self._graph is None, "a graph would repeat a copy between host and device"
        host = destination if isinstance(source, Tensor) else source
        free = non_blocking and host.untyped_storage().data_ptr() in self._pinned
        if isinstance(destination, Tensor):
            destination.inside.copy_(host)
            self._order([], [destination])
            if host.numel() == 0:
                return destination
            if free:
                self._leaving.append((host, host.clone()))
            else:
                self.wait("a copy from memory that is not pinned" if non_blocking else "a copy to the device")
            return destination
        assert isinstance(source, Tensor)
        self._order([source], [])
        if not free:
            self.wait("a copy to the host")
            return host.copy_(source.inside)
        self._arriving.append((self.num_started, host, source.inside.clone()))
        return host.fill_(float("nan") if host.is_floating_point() else -77)

    def _pin(self, host: torch.Tensor) -> torch.Tensor:
        storage = host.untyped_storage()
        self._pinned[storage.data_ptr()] = storage
        return host


def is_there(device: torch.device | str | None) -> bool:
    """Whether that is the pretended one; never by its name, which has become the other kind."""
    if not isinstance(device, torch.device):
        return False
    return device.type == "cuda" or (device.type == "meta" and device.index is not None)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _asks_for_sizes(name: str, given: Mapping[str, Any]) -> bool:
    """Whether the result's size is known to the device alone."""
    if name == "repeat_interleave":
        return isinstance(given["repeats"], Tensor) and given.get("output_size") is None
    if name in INDEXED:
        masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in given["indices"])
        return masks and not (name != "index" and given["values"].numel() == 1)
    return False
