"""A tiny scheduler for runner tests: hand-made StepPlans from shuffled free lists, one request per row.

It appends what the runner samples, so that `known tokens` agree; it never evicts, retracts or shares.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.adapters.weights import AdapterWeights, LoraMatrices
from hybrid.encoders.inputs import Encoder, EncoderInput
from hybrid.models.context import AttentionCache
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.image_positions import ImagePositions
from hybrid.models.native_config import NativeConfig
from hybrid.models.reference import NativeReference
from hybrid.models.weights import Weights
from hybrid.pools.sizing import PoolSizes
from hybrid.runner.launched import RunnerOutput
from hybrid.runner.lora_cache import AdapterSource
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import BlockDelta, EncodeImage, ImageSpan, LoadAdapter, NewRow, Snapshot, StepPlan

GREEDY = SamplingParams(temperature=0.0)
VOCAB = 61


def small_config(mixers: str, **overrides: object) -> NativeConfig:
    """`mixers`: one letter per layer, f(ull), s(liding), m(amba2); capitals have an MLP."""
    names = {"f": "full", "s": "sliding", "m": "mamba2"}
    data: dict[str, object] = {
        "model_type": "hybrid_native",
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "sliding_window": 9,
        "intermediate_size": 40,
        "mamba_num_heads": 4,
        "mamba_head_dim": 5,
        "mamba_state_size": 7,
        "mamba_n_groups": 2,
        "mamba_conv_kernel": 4,
        "layers": [{"mixer": names[letter.lower()], "mlp": letter.isupper()} for letter in mixers],
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "image_token_id": 2,
        "torch_dtype": "float32",
        "vision_config": None,
    }
    return NativeConfig.from_dict({**data, **overrides})


def random_reference(config: NativeConfig, seed: int = 0) -> NativeReference:
    """A model with large random weights, so that logits differ decisively and every part of a layer matters."""
    generator = torch.Generator().manual_seed(seed)
    model = NativeReference(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("A_log"):
                parameter.copy_(0.5 * noise - 1)
            elif name.endswith(("embed_tokens.weight", "pos_embed")):
                parameter.copy_(noise)
            elif parameter.ndim > 1:
                parameter.copy_(1.5 * noise / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(0.3 * noise)
    return model


@torch.no_grad()
def reference_logits(reference: NativeReference, token_ids: Sequence[int], embeds: torch.Tensor | None) -> torch.Tensor:
    """[tokens, vocab_size]; embeds [n, hidden_size] replace the first n placeholders, later ones were sampled."""
    ids = torch.tensor(token_ids)
    x = reference.embed_tokens(ids)
    if embeds is not None:
        where = (ids == reference.config.image_token_id).nonzero()[: len(embeds), 0]
        x[where] = embeds
    return reference.head(reference.decode(x[None]))[0]


def assert_greedy(
    reference: NativeReference, prompt: Sequence[int], tokens: Sequence[int], embeds: torch.Tensor | None = None
) -> None:
    """`tokens` is what greedy decoding of the prompt gives, by the reference's logits over the whole sequence."""
    logits = reference_logits(reference, [*prompt, *tokens], embeds)
    assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == list(tokens)


def native_model(reference: NativeReference, dtype: torch.dtype = torch.float32) -> Decoder:
    """The engine's model with the reference's weights."""
    weights = Weights(reference.state_dict(), dtype, torch.device("cpu"))
    return Decoder(read_model(reference.config.to_dict()), weights)


def runner_sizes(**overrides: int) -> PoolSizes:
    data = {
        "num_full_blocks": 300,
        "num_window_blocks": 300,
        "num_state_slots": 24,
        "num_rows": 12,
        "encoder_tokens": 64,
        "block_size": 4,
        "max_model_len": 160,
        "lookahead": 8,
        "lora_units": 0,
        "sliding_window": 8,
    }
    return PoolSizes(**{**data, **overrides})


def poison(runner: ModelRunner) -> None:
    """NaN in every block, slot, embedding and rank unit, as a former owner's content; the null blocks stay zero."""
    for cache in runner.caches.layers:
        if isinstance(cache, AttentionCache):
            cache.kv[: cache.null_block] = float("nan")
        else:
            cache.conv.fill_(float("nan"))
            cache.ssm.fill_(float("nan"))
    if runner.caches.encoder is not None:
        runner.caches.encoder.fill_(float("nan"))
    for site in runner.lora.sites if runner.lora is not None else ():
        site.a.fill_(float("nan"))
        site.b.fill_(float("nan"))


class RandomAdapters:
    """Adapters by lora_id, of the ranks given, that change all targets decisively; rank 0: nothing."""

    max_lora_rank = 24

    def __init__(self, targets: Mapping[str, tuple[int, ...]], ranks: Mapping[int, int]) -> None:
        self.targets = targets
        self._ranks = ranks

    def weights(self, lora_id: int) -> AdapterWeights:
        rank, generator = self._ranks[lora_id], torch.Generator().manual_seed(lora_id)
        modules = {}
        for name, (*experts, outputs, inputs) in self.targets.items() if rank else ():
            a = torch.randn(*experts, rank, inputs, generator=generator) / inputs**0.5
            b = torch.randn(*experts, outputs, rank, generator=generator) / rank**0.5
            modules[name] = LoraMatrices(a, b)
        return AdapterWeights(rank, modules)


@dataclass
class DrivenRequest:
    """A request as the driver sees it. images: position of the first placeholder -> (mm_hash, encoder slots)."""

    request_id: str
    row: int
    state_slot: int
    token_ids: list[int]
    num_prompt_tokens: int
    lora_id: int = 0
    num_computed: int = 0
    num_blocks: int = 0
    is_new: bool = True
    images: dict[int, tuple[str, NDArray[np.int64]]] = field(default_factory=dict)


def _delta(entries: list[tuple[int, int, int]]) -> BlockDelta:
    table = np.array(entries, dtype=np.int64).reshape(-1, 3)
    return BlockDelta(table[:, 0], table[:, 1], table[:, 2])


def _pairs(entries: list[tuple[int, int]]) -> NDArray[np.int64]:
    return np.array(entries, dtype=np.int64).reshape(-1, 2)


class PlanDriver:
    """Drives one runner. Block, slot and row ids come shuffled, so that nothing lies in order by accident."""

    def __init__(
        self,
        model: Decoder,
        sizes: PoolSizes,
        encoder: Encoder | None = None,
        seed: int = 0,
        stale: bool = True,
        device: torch.device | str = "cpu",
        decode_graphs: bool | None = False,
        adapters: AdapterSource | None = None,
        lora_targets: Collection[str] = (),
    ) -> None:
        self.model = model
        self.runner = ModelRunner(model, sizes, device, encoder, adapters, lora_targets, decode_graphs=decode_graphs)
        if stale:
            poison(self.runner)
        self.sizes = sizes
        rng = np.random.default_rng(seed)
        self._full = rng.permutation(sizes.num_full_blocks).tolist()
        self._window = rng.permutation(sizes.num_window_blocks).tolist()
        self._slots = rng.permutation(sizes.num_state_slots).tolist()
        self._rows = rng.permutation(sizes.num_rows).tolist()
        self._encoder_slots = rng.permutation(sizes.encoder_tokens).tolist()
        self._step_id = 0
        self._to_encode: list[EncodeImage] = []
        self._to_load: list[LoadAdapter] = []
        self._full_hits: list[tuple[int, int, int]] = []
        self._window_hits: list[tuple[int, int, int]] = []
        self._full_copies: list[tuple[int, int]] = []
        self._window_copies: list[tuple[int, int]] = []
        self._state_copies: list[tuple[int, int]] = []
        self.requests: dict[str, DrivenRequest] = {}

    def free_slot(self) -> int:
        return int(self._slots.pop())

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        images: Mapping[int, tuple[str, NDArray[np.float32], int]] | None = None,
        seed: int = 0,
        image_positions: ImagePositions | None = None,
        lora_id: int = 0,
    ) -> None:
        """images: position of the first placeholder -> (mm_hash, pixel values, number of tokens)."""
        pixels = {
            mm_hash: EncoderInput(mm_hash, {"pixel_values": values}, (count,))
            for mm_hash, values, count in (images or {}).values()
        }
        self.runner.add_request(request_id, params, pixels, (1,), seed, image_positions)
        request = DrivenRequest(request_id, self._rows.pop(), self.free_slot(), list(prompt), len(prompt), lora_id)
        for position, (mm_hash, _, count) in (images or {}).items():
            slots = np.array([self._encoder_slots.pop() for _ in range(count)], dtype=np.int64)
            request.images[position] = (mm_hash, slots)
            self._to_encode.append(EncodeImage(mm_hash, request_id, slots))
        self.requests[request_id] = request

    def load(self, lora_id: int, units: Sequence[int]) -> None:
        """The next step brings this adapter into these rank units."""
        self._to_load.append(LoadAdapter(lora_id, np.array(units, dtype=np.int64)))

    def embed(self, request_id: str, images: Mapping[int, torch.Tensor]) -> None:
        """Images without an encoder: position of the first placeholder -> embeddings [tokens, size] as one made
        them."""
        for position, embeddings in images.items():
            slots = np.array([self._encoder_slots.pop() for _ in embeddings], dtype=np.int64)
            self.requests[request_id].images[position] = (f"{request_id} {position}", slots)
            assert self.runner.caches.encoder is not None
            self.runner.caches.encoder[torch.from_numpy(slots)] = embeddings

    def resume(self, request_id: str, source_id: str, position: int, slot: int) -> None:
        """A prefix-cache hit: tokens before `position` are computed. Whole blocks are shared with the source request,
        a block that the position cuts is copied, and so is the state in `slot`."""
        request, source = self.requests[request_id], self.requests[source_id]
        size, mirror = self.sizes.block_size, self.runner.mirror
        request.num_computed = position
        request.num_blocks = -(-position // size)
        for table, free, deltas, copies in (
            (mirror.full_table, self._full, self._full_hits, self._full_copies),
            (mirror.window_table, self._window, self._window_hits, self._window_copies),
        ):
            for index in range(request.num_blocks):
                block = int(table[source.row, index])
                if (index + 1) * size > position:
                    copies.append((block, free.pop()))
                    block = copies[-1][1]
                deltas.append((request.row, index, block))
        self._state_copies.append((slot, request.state_slot))

    def finish(self, request_id: str) -> None:
        """The request ends; row and slot go to the next one with everything they hold."""
        request = self.requests.pop(request_id)
        self.runner.remove_request(request_id)
        self._rows.append(request.row)
        self._slots.append(request.state_slot)

    def plan(
        self,
        counts: Mapping[str, int],
        snapshots: Sequence[tuple[str, int, int]] = (),
        drafts: Mapping[str, Sequence[int]] | None = None,
    ) -> StepPlan:
        """Schedules counts[id] known tokens of each request, then its drafts. snapshots: (id, position, slot)."""
        rows, computed, scheduled, samples, num_drafts = [], [], [], [], []
        draft_ids: list[int] = []
        new_rows, spans = [], []
        full, self._full_hits = self._full_hits, []
        window, self._window_hits = self._window_hits, []
        for request_id, count in counts.items():
            request = self.requests[request_id]
            proposed = list((drafts or {}).get(request_id, ()))
            if request.is_new:
                known = np.array(request.token_ids, dtype=np.int32)
                new_rows.append(
                    NewRow(
                        row=request.row,
                        request_id=request_id,
                        token_ids=known,
                        num_prompt_tokens=request.num_prompt_tokens,
                        num_computed_tokens=request.num_computed,
                        state_slot=request.state_slot,
                        lora_id=request.lora_id,
                    )
                )
                request.is_new = False
            begin, end = request.num_computed, request.num_computed + count + len(proposed)
            while request.num_blocks * self.sizes.block_size < end:
                full.append((request.row, request.num_blocks, self._full.pop()))
                window.append((request.row, request.num_blocks, self._window.pop()))
                request.num_blocks += 1
            for position, (_, slots) in request.images.items():
                first, last = max(begin, position), min(end, position + len(slots))
                if first < last:
                    spans.append(ImageSpan(request.row, first, slots[first - position : last - position]))
            rows.append(request.row)
            computed.append(begin)
            scheduled.append(count + len(proposed))
            samples.append(begin + count == len(request.token_ids))
            num_drafts.append(len(proposed))
            draft_ids += proposed
            request.num_computed = begin + count
        encode, self._to_encode = tuple(self._to_encode), []
        loaded, self._to_load = tuple(self._to_load), []
        self._step_id += 1
        copies = [_pairs(c) for c in (self._full_copies, self._window_copies, self._state_copies)]
        self._full_copies, self._window_copies, self._state_copies = [], [], []
        return StepPlan(
            step_id=self._step_id,
            new_rows=tuple(new_rows),
            rows=np.array(rows, dtype=np.int64),
            num_computed_tokens=np.array(computed, dtype=np.int64),
            num_scheduled_tokens=np.array(scheduled, dtype=np.int64),
            samples=np.array(samples, dtype=np.bool_),
            num_draft_tokens=np.array(num_drafts, dtype=np.int64),
            draft_token_ids=np.array(draft_ids, dtype=np.int32),
            needs_grammar=np.zeros(len(rows), dtype=np.bool_),
            full_blocks=_delta(full),
            window_blocks=_delta(window),
            full_copies=copies[0],
            window_copies=copies[1],
            state_copies=copies[2],
            snapshots=tuple(
                Snapshot(self.requests[request_id].row, position, slot) for request_id, position, slot in snapshots
            ),
            load_adapters=loaded,
            encode=encode,
            image_spans=tuple(spans),
        )

    def commit(self, plan: StepPlan, output: RunnerOutput) -> dict[str, list[int]]:
        """Appends what was sampled; returns it by request."""
        by_row = {request.row: request for request in self.requests.values()}
        new: dict[str, list[int]] = {}
        for j, row in enumerate(plan.rows[plan.samples].tolist()):
            request, count = by_row[row], int(output.result.num_sampled[j])
            tokens = output.result.sampled_token_ids[j, :count].tolist()
            request.token_ids += tokens
            request.num_computed += count - 1  # accepted drafts were computed already
            new[request.request_id] = tokens
        return new

    def step(
        self,
        counts: Mapping[str, int],
        snapshots: Sequence[tuple[str, int, int]] = (),
        drafts: Mapping[str, Sequence[int]] | None = None,
    ) -> dict[str, list[int]]:
        plan = self.plan(counts, snapshots, drafts)
        return self.commit(plan, self.runner.execute(plan))

    def run(self, max_tokens: int, chunk: int) -> dict[str, list[int]]:
        """Chunks of at most `chunk` prompt tokens and decodes, all requests together, until each has max_tokens."""
        while True:
            counts = {
                request_id: min(chunk, len(request.token_ids) - request.num_computed)
                for request_id, request in self.requests.items()
                if len(request.token_ids) - request.num_prompt_tokens < max_tokens
            }
            if not counts:
                return {i: r.token_ids[r.num_prompt_tokens :] for i, r in self.requests.items()}
            self.step(counts)
