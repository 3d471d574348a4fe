"""ModelRunner: executes StepPlans. The only part that launches the model.

Order of one step: new rows and deltas, copies, encoder, decoder with snapshots, sampling. A plan may be launched before
the result of the one before is known: of that it needs the sampled tokens, and they stay on the device.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from hybrid.encoders.inputs import Encoder, EncoderInput
from hybrid.grammar.backend import Masks
from hybrid.models.context import Context
from hybrid.models.image_positions import ImagePositions
from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.transfer import Download, make_current, upload
from hybrid.pools.sizing import PoolSizes
from hybrid.pools.specs import ModelSpec
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import StepPlan, StepResult

from .batch import Drafted, WantedLogits, build_batch
from .caches import Caches
from .decode_graphs import DecodeGraphs
from .encoder_lora import EncoderLora
from .latest_tokens import LatestTokens
from .launched import LaunchedStep, LaunchedSteps, RunnerOutput
from .lora_cache import AdapterSource, LoraCache
from .row_mirror import UNKNOWN, RowMirror
from .sampler import Chunks, GrammarMask, Sampling, sample
from .sampling_columns import TokenBias, token_bias

logger = logging.getLogger(__name__)

IMAGES_PER_CALL = 16  # bounds the encoder's activations


class Decoder(Protocol):
    """What the runner asks of a model."""

    spec: ModelSpec
    dtype: torch.dtype
    image_token_id: int | None  # in whose place embeddings go
    bidirectional_images: bool  # tokens of an image see its later ones
    can_capture: bool  # a CUDA graph may hold `forward` of a DecodeContext
    uses_mrope: bool  # ropes know three positions per token

    @property
    def max_positions(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def forward(self, context: Context) -> torch.Tensor: ...

    @property
    def lora_sites(self) -> Sequence[LoraSite]: ...

    def compute_logits(self, hidden: torch.Tensor, lora: LoraBatch | None = None) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Request:
    params: SamplingParams
    images: Mapping[str, EncoderInput]
    bias: TokenBias
    seed: int
    image_positions: ImagePositions | None


class ModelRunner:
    """One model on one device, its pool tensors and row tables, all allocated here and never again.

    Raises ValueError for sizes that the model cannot serve.
    """

    def __init__(
        self,
        model: Decoder,
        sizes: PoolSizes,
        device: torch.device | str = "cpu",
        encoder: Encoder | None = None,
        adapters: AdapterSource | None = None,
        lora_targets: Collection[str] = (),
        decode_graphs: bool | None = None,
    ) -> None:
        """adapters: with them the LoRA pool is allocated, at those sites of model and encoder that are among
        `lora_targets`.

        decode_graphs: steps that only decode are replayed as CUDA graphs; None: where they can be captured. Elsewhere
        the same runs without capture.
        """
        if sizes.max_model_len > model.max_positions:
            raise ValueError(f"max_model_len {sizes.max_model_len} exceeds the model's {model.max_positions} positions")
        if encoder is not None and model.spec.encoder is None:
            raise ValueError("the model takes no images, but an encoder was given")
        self.sizes = sizes
        self.device = make_current(torch.device(device))
        self.dtype = model.dtype
        self.caches = Caches(model.spec, sizes, self.device)
        self.num_encoded_images = 0  # since the start
        self._model = model
        self._encoder = encoder
        self._adapters = adapters
        self.lora: LoraCache | None = None
        self._encoder_lora = EncoderLora({} if encoder is None else encoder.projections, lora_targets)
        if adapters is not None:
            sites = (*model.lora_sites, *self._encoder_lora.sites)
            rank = adapters.max_lora_rank
            self.lora = LoraCache(sites, lora_targets, sizes.lora_units, model.dtype, self.device, rank)
        self.mirror = RowMirror(sizes)
        self._latest = LatestTokens(sizes.num_rows, self.device)
        self._launched = LaunchedSteps()
        self._requests: dict[str, _Request] = {}
        self.graphs = self._capture(decode_graphs)

    def add_request(
        self,
        request_id: str,
        params: SamplingParams,
        images: Mapping[str, EncoderInput] | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        image_positions: ImagePositions | None = None,
    ) -> None:
        """Mutates: from now on plans may name this request. images: by mm_hash; image_positions: of their tokens, for a
        model whose ropes know three positions.

        Raises ValueError for a request id in use, images that nothing encodes, or token ids beyond the vocabulary.
        """
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} exists already")
        if images and self._encoder is None:
            raise ValueError(f"request {request_id!r} brings images, but the model takes none")
        bias = token_bias(params, eos_token_ids, self._model.vocab_size)
        self._requests[request_id] = _Request(params, dict(images or {}), bias, seed, image_positions)

    def remove_request(self, request_id: str) -> None:
        """Mutates: forgets the request; plans may not bring it or its images in any more. Unknown ids: nothing."""
        self._requests.pop(request_id, None)

    def execute(self, plan: StepPlan, grammar: Masks | None = None) -> RunnerOutput:
        """Runs one plan to its end: `launch`, and its result."""
        return self.launch(plan, grammar)()

    @torch.inference_mode()
    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        """Starts one plan; its result is to be called for, in the order of the plans. Mutates caches and mirror.

        On a GPU nothing waits for the device, except for drafts, where rows with penalties need tokens of the plan
        before, and where a vision tower asks for something. A CPU computes here.

        grammar: called once the model has been launched; row id -> bitmask of allowed tokens [ceil(vocab_size / 32)],
        for every row with `needs_grammar` that samples.
        Raises NotImplementedError for drafts of a row with a grammar. The result raises NonFiniteLogits, a
        FloatingPointError, naming the requests whose logits are not finite or, of chunks that sample nothing, whose
        last hidden states; what was launched after such a plan counts for none of its rows.
        """
        make_current(self.device)  # a step may run in another thread than the one before
        mirror = self.mirror
        # 1. rows and deltas
        for new in plan.new_rows:
            request = self._requests[new.request_id]
            mirror.start_row(new, request.image_positions)
            mirror.sampling.set(new.row, request.params, request.seed, request.bias)
        mirror.apply_deltas(plan)
        if self.graphs is not None:
            self.graphs.tables.apply(plan)
        # 2. copies
        self.caches.copy_full(plan.full_copies)
        self.caches.copy_window(plan.window_copies)
        self.caches.copy_states(plan.state_copies)
        # 3. adapters, encoder
        for adapter in plan.load_adapters:
            assert self._adapters is not None and self.lora is not None, "the plan loads an adapter that nobody has"
            self.lora.load(adapter, self._adapters.weights(adapter.lora_id))
        self._encode(plan)
        # 4. decoder with snapshots
        if len(plan.rows) == 0:
            return _nothing_done(plan, self.device)
        lora: LoraBatch | None = None
        drafted: Drafted | None = None
        if self.graphs is not None and self.graphs.serves(plan, mirror):
            if self.lora is not None:
                lora = self.lora.batch(mirror.lora_id[plan.rows], plan.num_scheduled_tokens)
            hidden = self.graphs.run(plan, mirror, lora)
            wanted = WantedLogits.of(plan, np.arange(len(plan.rows)))
        else:
            batch = build_batch(
                plan,
                mirror,
                self._latest,
                self.caches,
                self.sizes,
                self.device,
                self.lora,
                self._model.image_token_id,
                self._model.bidirectional_images,
            )
            hidden = self._model.forward(batch.context)
            wanted, lora, drafted = batch.logits, batch.context.lora, batch.drafted
        # 5. sampling, last of all: who waits for the tokens waits for nothing more
        chunks = None
        if len(wanted.silent_rows):
            ends = hidden.index_select(0, upload(wanted.silent_ends, self.device))
            chunks = Chunks(ends, wanted.silent_rows, mirror)
        sampling = self._sample(plan, wanted, hidden, lora, grammar)
        has_drafts = bool(plan.num_draft_tokens.any())
        if not has_drafts:
            self._latest.put(wanted.rows, sampling.tokens)
        step = LaunchedStep(plan, sampling, wanted, drafted, mirror, chunks)
        self._launched.add(step)
        if has_drafts:
            self._launched.settle()  # how many were accepted, the next plan has to know
        return partial(self._launched.result, step)

    def _sample(
        self, plan: StepPlan, wanted: WantedLogits, hidden: torch.Tensor, lora: LoraBatch | None, grammar: Masks | None
    ) -> Sampling:
        """Of the plan's rows that sample. May settle steps."""
        mirror = self.mirror
        if len(wanted.rows) == 0:
            return Sampling(torch.empty(0, dtype=torch.int64, device=self.device), wanted.rows, mirror)
        logits = self._model.compute_logits(
            hidden.index_select(0, upload(wanted.tokens, self.device)),
            None if lora is None else lora.select(wanted.tokens),
        )
        mask = _grammar_mask(plan, wanted, grammar)
        penalised = mirror.sampling.penalised[wanted.rows]
        if (mirror.token_ids[wanted.rows[penalised], wanted.positions[penalised] - 1] == UNKNOWN).any():
            self._launched.settle()  # penalties are for tokens that the host knows
        return sample(logits, wanted.rows, wanted.positions, mirror, mask)

    def _capture(self, wanted: bool | None) -> DecodeGraphs | None:
        """See `decode_graphs`. An engine can do without them: where CUDA refuses, a warning says why."""
        capture = self.device.type == "cuda" and self._model.can_capture
        if not (capture if wanted is None else wanted):
            return None
        try:
            return DecodeGraphs(
                self._model.forward,
                self.caches,
                self.mirror,
                self._latest,
                self.sizes,
                self.device,
                capture,
                self._model.uses_mrope,
                self.lora,
            )
        except Exception as error:  # also Triton's own, which are no RuntimeErrors
            logger.warning("CUDA graphs cannot be captured, steps run without them: %s", error)
            return None

    def _encode(self, plan: StepPlan) -> None:
        """Mutates the encoder cache: embeddings of the plan's images, several per call, all of one adapter or none."""
        if not plan.encode:
            return
        assert self._encoder is not None and self.caches.encoder is not None, "the plan encodes images for no encoder"
        inputs = [(image, self._requests[image.request_id].images[image.mm_hash]) for image in plan.encode]
        for lora_id in sorted({entry.lora_id for _, entry in inputs}):
            of_one = [(image, entry) for image, entry in inputs if entry.lora_id == lora_id]
            units = self.lora.units(lora_id) if self.lora is not None else None
            for begin in range(0, len(of_one), IMAGES_PER_CALL):
                images = of_one[begin : begin + IMAGES_PER_CALL]
                with self._encoder_lora.applied(units):
                    embeddings = self._encoder([entry for _, entry in images])
                for (image, _), tokens in zip(images, embeddings):
                    assert len(image.slots) == len(tokens), f"{len(image.slots)} slots for {len(tokens)} image tokens"
                slots = upload(np.concatenate([image.slots for image, _ in images]), self.device)
                self.caches.encoder.index_copy_(0, slots, torch.cat(list(embeddings)).to(self.caches.encoder.dtype))
        self.num_encoded_images += len(plan.encode)


def _nothing_done(plan: StepPlan, device: torch.device) -> Callable[[], RunnerOutput]:
    """The result of a plan without rows, once the device has come to its end."""
    end = Download(torch.empty(0, device=device))

    def result() -> RunnerOutput:
        end.wait()
        return RunnerOutput(StepResult.one_each(plan.step_id, np.zeros(0, dtype=np.int32)), ())

    return result


def _grammar_mask(plan: StepPlan, wanted: WantedLogits, grammar: Masks | None) -> GrammarMask | None:
    """The masks of the plan's sampling rows that need one."""
    needed = plan.needs_grammar & plan.samples
    if not needed.any():
        return None
    if (plan.num_draft_tokens[needed] > 0).any():
        raise NotImplementedError("draft tokens of a row with a grammar cannot be verified yet")
    where = np.flatnonzero(plan.needs_grammar[plan.samples][wanted.owner])
    masks = grammar() if grammar is not None else {}
    missing = [int(row) for row in wanted.rows[where] if int(row) not in masks]
    assert not missing, f"no grammar mask for rows {missing}"
    return GrammarMask(where, np.stack([masks[int(row)] for row in wanted.rows[where]]))
