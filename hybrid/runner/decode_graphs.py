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
from hybrid.models.ops.decode_lora import DecodeLora
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.transfer import staged
from hybrid.pools.sizing import PoolSizes
from hybrid.scheduler.plan import Ints, StepPlan

from .caches import Caches
from .device_tables import DeviceTables
from .latest_tokens import LatestTokens
from .lora_cache import LoraCache
from .row_mirror import RowMirror

MOST_ROWS = 512  # of a graph


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Sizes to capture, as vLLM has them: 1, 2, 4, every 8th to 256, every 16th from there; and the largest batch."""
    most = min(max_num_seqs, MOST_ROWS)
    return tuple(sorted({size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most, 16)) if size < most} | {most}))


def decodes_only(plan: StepPlan, mirror: RowMirror) -> bool:
    """Whether a graph can serve the plan: every row runs one token, and none stands in front of the end of its images.
    (A row with drafts runs several tokens.)"""
    return (
        len(plan.rows) > 0
        and bool((plan.num_scheduled_tokens == 1).all())
        and not plan.image_spans
        and not (plan.num_computed_tokens < mirror.images_end[plan.rows]).any()
    )


def _snapshots(plan: StepPlan, mirror: RowMirror) -> Ints:
    """Of rows that run one token: from which slot to which, once it has run."""
    pairs = np.zeros((len(plan.snapshots), 2), dtype=np.int64)
    for i, snapshot in enumerate(plan.snapshots):
        pairs[i] = mirror.state_slot[snapshot.row], snapshot.slot
    return pairs


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: torch.Tensor  # [3, D] int64: token ids, positions, rows; with mrope [4, D]: where its ropes have the tokens
    lora: DecodeLora | None  # None: the base model's
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
        mrope: bool,
        lora: LoraCache | None,
    ) -> None:
        """Captures all sizes, with adapters twice; with `capture` false, nothing. mrope: ropes know three positions per
        token.

        Raises whatever CUDA and the compiler of kernels raise where they cannot.
        """
        self.tables = DeviceTables(mirror, caches, sizes, device)
        self.num_steps = 0  # served since the start
        self._forward = forward
        self._latest = latest
        self._caches = caches
        self._device = device
        self._mrope = mrope
        self._sizes = batch_sizes(sizes.num_rows)
        self._stream = torch.cuda.Stream(device) if capture else None
        self._pool = torch.cuda.graph_pool_handle() if capture else None
        # The largest first: the others find their memory in what it needed. Steps in which nobody has an adapter have
        # graphs of their own, so that they pay nothing.
        kinds = [(size, adapters) for size in self._sizes[::-1] for adapters in (False, True)[: 1 + (lora is not None)]]
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        for size, adapters in tqdm(
            kinds, "capturing CUDA graphs", unit="graph", dynamic_ncols=True, disable=not capture
        ):
            of_rows = lora.of_decodes(size) if lora is not None and adapters else None
            self._graphs[size, adapters] = self._graph(size, of_rows)

    def serves(self, plan: StepPlan, mirror: RowMirror) -> bool:
        """Whether `run` may be called for the plan."""
        return len(plan.rows) <= self._sizes[-1] and decodes_only(plan, mirror)

    def run(self, plan: StepPlan, mirror: RowMirror, lora: LoraBatch | None = None) -> torch.Tensor:
        """Hidden states [num_rows, hidden_size], as `Decoder.forward` gives them, valid until the next call.

        lora: what adapters do to the rows. Mutates the caches. `tables` know the plan already.
        """
        rows, positions = plan.rows, plan.num_computed_tokens
        graph = self._graphs[self._sizes[np.searchsorted(self._sizes, len(rows))], lora is not None]
        if graph.lora is not None and lora is not None:
            graph.lora.fill(lora)
        inputs = np.zeros(graph.inputs.shape, dtype=np.int64)
        inputs[2] = self.tables.nobody
        inputs[:3, : len(rows)] = mirror.token_ids[rows, positions], positions, rows
        inputs[3:, : len(rows)] = positions + mirror.image_shift[rows]
        graph.inputs.copy_(staged(inputs, self._device), non_blocking=True)
        self.num_steps += 1
        hidden = graph.replay()[: len(rows)]
        self._caches.copy_states(_snapshots(plan, mirror))
        return hidden

    def _graph(self, size: int, lora: DecodeLora | None) -> _Graph:
        """For batches of this size, all of whose rows are nobody's for now. lora: of these rows."""
        inputs = torch.zeros((3 + self._mrope, size), dtype=torch.int64, device=self._device)
        inputs[2] = self.tables.nobody
        run = partial(self._run, inputs, lora)
        return _Graph(inputs, lora, run if self._stream is None else self._capture(run, self._stream))

    def _run(self, inputs: torch.Tensor, lora: DecodeLora | None) -> torch.Tensor:
        """Hidden states of the rows in `inputs`."""
        token_ids, positions, rows, *turned = inputs
        context = DecodeContext(
            token_ids=self._latest.fill(token_ids, rows),
            positions=positions,
            rows=rows,
            full=self.tables.full,
            window=self.tables.window,
            state_slots=self.tables.state_slots,
            caches=self._caches.layers,
            image_positions=turned[0] if turned else None,
            lora=lora,
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
