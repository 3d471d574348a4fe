"""LLM: the Python surface, shaped like vLLM's. Prompts or messages in, RequestOutputs out.

Knows how to drive an engine in the calling thread; everything else is behind `engine_setup`.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from tqdm import tqdm

from hybrid.adapters.adapter import Adapter
from hybrid.adapters.store import AdapterStore
from hybrid.encoders.images import ImageSource
from hybrid.frontend.messages import read_conversation
from hybrid.frontend.prompt import Prompt
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.frontend.tool_calls import read_tools
from hybrid.scheduler.config import SchedulingPolicy
from hybrid.scheduler.stats import SchedulerStats

from .driver import Driver
from .engine_args import DEFAULT_MAX_NUM_BATCHED_TOKENS, EngineArgs
from .engine_setup import default_sampling_params, set_up
from .lora_request import LoRARequest, one_each
from .outputs import RequestOutput
from .sampling_params import SamplingParams
from .vllm_arguments import without_vllm

PROGRESS_AFTER_SECONDS = 1.0  # shorter work shows no bar

Params = SamplingParams | Sequence[SamplingParams] | None
LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None


class LLM:
    """A model ready to generate. Not thread-safe.

    Bad input is a ValueError of one sentence, raised before anything runs; the engine stays usable. Ctrl-C while it
    generates raises KeyboardInterrupt after the running step, with the call's requests ended.
    """

    def __init__(
        self,
        model: str | Path = "tiny",
        *,
        tokenizer: str | Path | None = None,
        skip_tokenizer_init: bool = False,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
        block_size: int = 16,
        memory: int | str | None = None,
        gpu_memory_utilization: float | None = None,
        dtype: str = "auto",
        device: str | None = None,
        num_threads: int | None = None,
        seed: int = 0,
        enable_prefix_caching: bool = True,
        scheduling_policy: SchedulingPolicy = "fcfs",
        enforce_eager: bool = False,
        async_scheduling: bool | None = None,
        num_full_blocks: int | None = None,
        num_window_blocks: int | None = None,
        num_state_slots: int | None = None,
        encoder_tokens: int | None = None,
        limit_mm_per_prompt: Mapping[str, int] | None = None,
        enable_lora: bool = False,
        lora_modules: Mapping[str, str | Path] | None = None,
        max_loras: int = 4,
        max_lora_rank: int = 64,
        lora_units: int | None = None,
        max_cpu_loras: int | None = None,
        lora_target_modules: Sequence[str] | None = None,
        **others: Any,
    ) -> None:
        """See EngineArgs for the arguments; `others` are fields of SchedulerConfig, and what `vllm_arguments` takes.

        Raises ValueError for a checkpoint that is not right, an argument that can never be, or too little memory.
        """
        args = EngineArgs(
            model=model,
            tokenizer=tokenizer,
            skip_tokenizer_init=skip_tokenizer_init,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            memory=memory,
            gpu_memory_utilization=gpu_memory_utilization,
            dtype=dtype,
            device=device,
            num_threads=num_threads,
            seed=seed,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            enforce_eager=enforce_eager,
            async_scheduling=async_scheduling,
            num_full_blocks=num_full_blocks,
            num_window_blocks=num_window_blocks,
            num_state_slots=num_state_slots,
            encoder_tokens=encoder_tokens,
            limit_mm_per_prompt=limit_mm_per_prompt if limit_mm_per_prompt is not None else {},
            enable_lora=enable_lora,
            lora_modules=lora_modules if lora_modules is not None else {},
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
            lora_units=lora_units,
            max_cpu_loras=max_cpu_loras,
            lora_target_modules=lora_target_modules,
            scheduler=without_vllm(others),
        )
        setup = set_up(args)
        self.args = args
        self.engine = setup.engine
        self.sizes = setup.sizes
        self.limits = setup.limits
        self._processor = setup.processor
        self._generation_defaults = setup.generation_defaults
        self._driver = Driver(setup.engine, setup.processor, seed)

    # --- generate ------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequests = None,
    ) -> list[RequestOutput]:
        """One output per prompt, in order.

        prompts: one or a list of: text; token ids; {"prompt" or "prompt_token_ids", "multi_modal_data": {"image": ...},
        "cache_salt": ...}. sampling_params: for all, or one each; None: `get_default_sampling_params`.
        priority: one each, lower runs earlier (with scheduling_policy "priority").
        lora_request: the adapter for all, or one each, None for the base model; `enable_lora` must be on.
        """
        listed = [prompts] if _is_one_prompt(prompts) else list(prompts)
        params = _params(sampling_params, len(listed), self.get_default_sampling_params())
        processed = _each(self._processor.process, listed, "prompt")
        adapters = self._adapters(one_each(lora_request, len(listed)))
        return self._run(processed, params, _priorities(priority, len(listed)), adapters, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequests = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The assistant's answers to one conversation or a list of them; one output per conversation, in order.

        A conversation is a list of {"role", "content"}; content is text or a list of {"type": "text", "text"},
        {"type": "image", "image"} and {"type": "image_url", "image_url": {"url"}} (path, file: or data: URL).
        sampling_params None: `get_default_sampling_params`, with as many tokens as the context holds.
        tools: for the chat template, as in the OpenAI API; calls stay in the text (`hybrid.frontend.tool_calls` finds
        them). chat_template_kwargs: further variables for the template.
        """
        listed = [messages] if _is_one_conversation(messages) else list(messages)
        params = _params(sampling_params, len(listed), self.get_default_sampling_params(max_tokens=None))
        variables = read_tools(tools).variables(chat_template_kwargs)
        processed = _each(lambda one: self._chat_prompt(one, variables), listed, "conversation")
        adapters = self._adapters(one_each(lora_request, len(listed)))
        return self._run(processed, params, _priorities(priority, len(listed)), adapters, use_tqdm)

    def stream(
        self, prompt: Any, sampling_params: SamplingParams | None = None, *, lora_request: LoRARequest | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Like `generate` for one prompt, yielding the output as far as it has come after every step that adds to it.

        The prompt is checked at once. Closing the iterator ends the request.
        """
        [params] = _params(sampling_params, 1, self.get_default_sampling_params())
        return self._stream(self._processor.process(prompt), params, self._adapters(one_each(lora_request, 1)))

    def stream_chat(
        self, messages: Any, sampling_params: SamplingParams | None = None, *, lora_request: LoRARequest | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Like `chat` for one conversation, yielding as `stream` does."""
        [params] = _params(sampling_params, 1, self.get_default_sampling_params(max_tokens=None))
        return self._stream(self._chat_prompt(messages, {}), params, self._adapters(one_each(lora_request, 1)))

    def _chat_prompt(self, messages: Any, variables: Mapping[str, Any]) -> Prompt:
        return self._processor.process_chat(read_conversation(messages), variables=variables)

    # --- adapters ------------------------------------------------------------------------------------------------

    def load_lora_adapter(self, lora_name: str, lora_path: str | Path) -> None:
        """Mutates: `lora_name` stands for the adapter in the PEFT folder `lora_path`, also if it stood for another.

        Raises ValueError for a folder that is not right; the name stands for what it did.
        """
        self._store().load(lora_name, lora_path)

    def unload_lora_adapter(self, lora_name: str) -> None:
        """Mutates: no new request may use it; those that run go on with it. ValueError: it is not loaded."""
        self._store().unload(lora_name)

    def list_loras(self) -> tuple[str, ...]:
        """Names of loaded adapters."""
        return self.engine.adapters.names() if self.engine.adapters is not None else ()

    def _store(self) -> AdapterStore:
        if self.engine.adapters is None:
            raise ValueError("adapters need an LLM with enable_lora=True")
        return self.engine.adapters

    def _adapters(self, requests: Sequence[LoRARequest | None]) -> list[Adapter | None]:
        """Mutates: adapters that are not loaded yet are. Raises ValueError."""
        return [None if request is None else self._adapter(request) for request in requests]

    def _adapter(self, request: LoRARequest) -> Adapter:
        store, name = self._store(), request.lora_name
        if name not in store.names():
            if not request.lora_path:
                return store.get(name)  # which says that it is not loaded
            return store.load(name, request.lora_path)
        if request.lora_path and Path(request.lora_path).expanduser() != store.path(name):
            raise ValueError(f"adapter {name!r} is loaded from {store.path(name)}, not from {request.lora_path}")
        return store.get(name)

    # --- questions and care --------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """Raises ValueError when there is none."""
        if self._processor.tokenizer is None:
            raise ValueError("there is no tokenizer: skip_tokenizer_init left it out")
        return self._processor.tokenizer

    def num_image_tokens(self, image: ImageSource) -> int:
        """Tokens of the context that a picture costs. Raises ValueError for one that the model cannot be shown."""
        return self._processor.num_image_tokens(image)

    def get_default_sampling_params(self, max_tokens: int | None = 16) -> SamplingParams:
        """What the checkpoint's `generation_config.json` recommends; greedy where it says do_sample false."""
        return default_sampling_params(self._generation_defaults, max_tokens)

    def stats(self) -> SchedulerStats:
        """Counters since the start, and the six ledgers as they are now, by the name of their pool."""
        return self.engine.scheduler.stats()

    def reset_prefix_cache(self) -> None:
        """Mutates: nothing computed so far is found again."""
        self.engine.scheduler.reset_prefix_cache()

    # --- driving the engine --------------------------------------------------------------------------------------

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        adapters: Sequence[Adapter | None],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """Mutates: all of them to their end; whatever breaks in ends them."""
        collectors = self._driver.submit(prompts, params, priorities, adapters)
        try:
            unfinished = set(collectors)
            started, tokens_before = monotonic(), self._driver.num_tokens
            with tqdm(
                total=len(collectors),
                desc="requests",
                disable=not use_tqdm,
                delay=PROGRESS_AFTER_SECONDS,
                miniters=0,  # also moves while a request goes on
                dynamic_ncols=True,
            ) as bar:
                while unfinished:
                    done = {collector for collector in self._driver.step().keys() & unfinished if collector.finished}
                    unfinished -= done
                    rate = (self._driver.num_tokens - tokens_before) / max(monotonic() - started, 1e-9)
                    bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
                    bar.update(len(done))
        finally:
            self._driver.cancel(collectors)
        return [collector.output() for collector in collectors]

    def _stream(
        self, prompt: Prompt, params: SamplingParams, adapters: Sequence[Adapter | None]
    ) -> Generator[RequestOutput, None, None]:
        """Mutates while it is iterated."""
        [collector] = self._driver.submit([prompt], [params], [0], adapters)
        shown = False  # whether the end was; another call may drive this request to it
        try:
            while not collector.finished:
                if collector in self._driver.step():
                    shown = collector.finished
                    yield collector.output()
            if not shown:
                yield collector.output()
        finally:
            self._driver.cancel([collector])


def _is_one_prompt(prompts: object) -> bool:
    """Text, a mapping, or token ids; otherwise it is to be a list of prompts. Raises ValueError for what is neither."""
    if isinstance(prompts, str | Mapping):
        return True
    if isinstance(prompts, np.ndarray) and prompts.ndim > 0:
        return prompts.ndim == 1
    if isinstance(prompts, bytes | bytearray | memoryview) or not isinstance(prompts, Sequence):
        raise ValueError(f"prompts must be text, token ids, a mapping or a list of these, got {type(prompts).__name__}")
    return len(prompts) > 0 and isinstance(prompts[0], int | np.integer)


def _is_one_conversation(messages: object) -> bool:
    """A list of mappings; otherwise it is to be a list of conversations. Raises ValueError for what is neither."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ValueError(f"messages must be a list of mappings, got {type(messages).__name__}")
    return len(messages) == 0 or not isinstance(messages[0], list | tuple)


def _params(given: Params, number: int, default: SamplingParams) -> list[SamplingParams]:
    """One for each prompt. Raises ValueError when there are more or fewer, or something else is among them."""
    if given is None or isinstance(given, SamplingParams):
        return [given or default] * number
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"sampling_params must be SamplingParams or a list of them, got {given!r}")
    listed = list(given)
    if len(listed) != number:
        raise ValueError(f"there are {number} prompts and {len(listed)} sampling_params")
    for params in listed:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
    return listed


def _priorities(given: Sequence[int] | None, number: int) -> list[int]:
    """One for each prompt. Raises ValueError."""
    if given is None:
        return [0] * number
    if not isinstance(given, Iterable):
        raise ValueError(f"priority must be a list with an integer for each prompt, got {given!r}")
    listed = list(given)
    if len(listed) != number:
        raise ValueError(f"there are {number} prompts and {len(listed)} priorities")
    for priority in listed:
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError(f"a priority must be an integer, got {priority!r}")
    return listed


def _each(make: Callable[[Any], Prompt], inputs: Sequence[Any], noun: str) -> list[Prompt]:
    """`make` of every input. A ValueError names the index where there are several."""
    made = []
    for index, value in enumerate(inputs):
        try:
            made.append(make(value))
        except ValueError as error:
            raise ValueError(f"{noun} {index}: {error}" if len(inputs) > 1 else str(error)) from None
    return made
