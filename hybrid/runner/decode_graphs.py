"""DecodeGraphs: steps in which every row decodes one token, as CUDA graphs of certain batch sizes.

A smaller batch is padded with rows that are nobody's. All that a graph reads and writes lies where it lay when it was
captured: inputs in buffers that are filled in place, tables on the device. Knows the model's forward pass; neither
logits nor sampling. Where nothing can be captured the same runs step by step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from hybrid.models.context import DecodeContext
from hybrid.models.ops.transfer import staged
from hybrid.pools.sizing import PoolSizes
from hybrid.scheduler.plan import StepPlan

from .caches import Caches
from .device_tables import DeviceTables
from .latest_tokens import LatestTokens
from .row_mirror import RowMirror

MOST_ROWS = 512  # of a graph


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Sizes to capture, as vLLM has them: 1, 2, 4, every 8th to 256, every 16th from there; and the largest batch."""
    most = min(max_num_seqs, MOST_ROWS)
    return tuple(sorted({size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most, 16)) if size < most} | {most}))


def decodes_only(plan: StepPlan, mirror: RowMirror) -> bool:
    """Whether a graph can serve the plan: every row runs one token, and none takes a snapshot, part of an image, an
    adapter, or positions that images have shifted. (A row with drafts runs several tokens.)"""
    return (
        len(plan.rows) > 0
        and bool((plan.num_scheduled_tokens == 1).all())
        and not plan.snapshots
        and not plan.image_spans
        and not mirror.lora_id[plan.rows].any()
        and not mirror.images_end[plan.rows].any()
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: torch.Tensor  # [3, D] int64: token ids, positions, rows
    replay: Callable[[], torch.Tensor]  # hidden states [D, hidden_size] of what the inputs hold, void at the next call


class DecodeGraphs:
    """Of one model on one device."""

    def __init__(
        self,
        forward: Callable[[DecodeContext], torch.Tensor],
        caches: Caches,
        mirror: RowMirror,
        latest: LatestTokens,
        sizes: PoolSizes,
        device: torch.device,
        capture: bool,
    ) -> None:
        """Captures all sizes; with `capture` false, nothing. Raises RuntimeError where CUDA cannot capture."""
        self.tables = DeviceTables(mirror, caches, sizes, device)
        self.num_steps = 0  # served since the start
        self._forward = forward
        self._latest = latest
        self._caches = caches
        self._device = device
        self._sizes = batch_sizes(sizes.num_rows)
        self._stream = torch.cuda.Stream(device) if capture else None
        self._pool = torch.cuda.graph_pool_handle() if capture else None
        # the largest first: the others find their memory in what it needed
        largest_first = tqdm(
            self._sizes[::-1], "capturing CUDA graphs", unit="size", dynamic_ncols=True, disable=not capture
        )
        self._graphs = {size: self._graph(size) for size in largest_first}

    def serves(self, plan: StepPlan, mirror: RowMirror) -> bool:
        """Whether `run` may be called for the plan."""
        return len(plan.rows) <= self._sizes[-1] and decodes_only(plan, mirror)

    def run(self, plan: StepPlan, mirror: RowMirror) -> torch.Tensor:
        """Hidden states [num_rows, hidden_size], as `Decoder.forward` gives them, valid until the next call.

        Mutates the caches. `tables` know the plan already.
        """
        rows, positions = plan.rows, plan.num_computed_tokens
        graph = self._graphs[self._sizes[np.searchsorted(self._sizes, len(rows))]]
        inputs = np.zeros(graph.inputs.shape, dtype=np.int64)
        inputs[2] = self.tables.nobody
        inputs[:, : len(rows)] = mirror.token_ids[rows, positions], positions, rows
        graph.inputs.copy_(staged(inputs, self._device), non_blocking=True)
        self.num_steps += 1
        return graph.replay()[: len(rows)]

    def _graph(self, size: int) -> _Graph:
        """For batches of this size, all of whose rows are nobody's for now."""
        inputs = torch.zeros((3, size), dtype=torch.int64, device=self._device)
        inputs[2] = self.tables.nobody
        run = partial(self._run, inputs)
        return _Graph(inputs, run if self._stream is None else self._capture(run, self._stream))

    def _run(self, inputs: torch.Tensor) -> torch.Tensor:
        """Hidden states of the rows in `inputs`."""
        token_ids, positions, rows = inputs
        context = DecodeContext(
            token_ids=self._latest.fill(token_ids, rows),
            positions=positions,
            rows=rows,
            full=self.tables.full,
            window=self.tables.window,
            state_slots=self.tables.state_slots,
            caches=self._caches.layers,
        )
        return self._forward(context)

    @torch.inference_mode()
    def _capture(self, run: Callable[[], torch.Tensor], stream: torch.cuda.Stream) -> Callable[[], torch.Tensor]:
        """`run` as a graph; its rows must be nobody's now."""
        # 1. as it is, for kernels that are compiled and memory that libraries keep
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        # 2. captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            hidden = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return hidden

        return replay
