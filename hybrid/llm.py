"""LLM: the Python surface, shaped like vLLM's. Prompts or messages in, RequestOutputs out.

Knows how to drive an engine in the calling thread; everything else is behind `engine_setup`.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from tqdm import tqdm

from hybrid.frontend.messages import read_conversation
from hybrid.frontend.prompt import Prompt
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.scheduler.config import SchedulingPolicy
from hybrid.scheduler.stats import SchedulerStats

from .driver import Driver
from .engine_args import DEFAULT_MAX_NUM_BATCHED_TOKENS, EngineArgs
from .engine_setup import default_sampling_params, set_up
from .outputs import RequestOutput
from .sampling_params import SamplingParams

PROGRESS_AFTER_SECONDS = 1.0  # shorter work shows no bar

Params = SamplingParams | Sequence[SamplingParams] | None


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
        dtype: str = "auto",
        device: str | None = None,
        num_threads: int | None = None,
        seed: int = 0,
        enable_prefix_caching: bool = True,
        scheduling_policy: SchedulingPolicy = "fcfs",
        num_full_blocks: int | None = None,
        num_window_blocks: int | None = None,
        num_state_slots: int | None = None,
        encoder_tokens: int | None = None,
        **scheduler: Any,
    ) -> None:
        """See EngineArgs for the arguments; `scheduler` are fields of SchedulerConfig.

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
            dtype=dtype,
            device=device,
            num_threads=num_threads,
            seed=seed,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            num_full_blocks=num_full_blocks,
            num_window_blocks=num_window_blocks,
            num_state_slots=num_state_slots,
            encoder_tokens=encoder_tokens,
            scheduler=scheduler,
        )
        setup = set_up(args)
        self.args = args
        self.engine = setup.engine
        self.sizes = setup.sizes
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
    ) -> list[RequestOutput]:
        """One output per prompt, in order.

        prompts: one or a list of: text; token ids; {"prompt" or "prompt_token_ids", "multi_modal_data": {"image": ...},
        "cache_salt": ...}. sampling_params: for all, or one each; None: `get_default_sampling_params`.
        priority: one each, lower runs earlier (with scheduling_policy "priority").
        """
        listed = [prompts] if _is_one_prompt(prompts) else list(prompts)
        params = _params(sampling_params, len(listed), self.get_default_sampling_params())
        processed = _each(self._processor.process, listed, "prompt")
        return self._run(processed, params, _priorities(priority, len(listed)), use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The assistant's answers to one conversation or a list of them; one output per conversation, in order.

        A conversation is a list of {"role", "content"}; content is text or a list of {"type": "text", "text"},
        {"type": "image", "image"} and {"type": "image_url", "image_url": {"url"}} (path, file: or data: URL).
        sampling_params None: `get_default_sampling_params`, with as many tokens as the context holds.
        """
        listed = [messages] if _is_one_conversation(messages) else list(messages)
        params = _params(sampling_params, len(listed), self.get_default_sampling_params(max_tokens=None))
        processed = _each(self._chat_prompt, listed, "conversation")
        return self._run(processed, params, _priorities(priority, len(listed)), use_tqdm)

    def stream(
        self, prompt: Any, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Like `generate` for one prompt, yielding the output as far as it has come after every step that adds to it.

        The prompt is checked at once. Closing the iterator ends the request.
        """
        [params] = _params(sampling_params, 1, self.get_default_sampling_params())
        return self._stream(self._processor.process(prompt), params)

    def stream_chat(
        self, messages: Any, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Like `chat` for one conversation, yielding as `stream` does."""
        [params] = _params(sampling_params, 1, self.get_default_sampling_params(max_tokens=None))
        return self._stream(self._chat_prompt(messages), params)

    def _chat_prompt(self, messages: Any) -> Prompt:
        return self._processor.process_chat(read_conversation(messages))

    # --- questions and care --------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """Raises ValueError when there is none."""
        if self._processor.tokenizer is None:
            raise ValueError("there is no tokenizer: skip_tokenizer_init left it out")
        return self._processor.tokenizer

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
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], priorities: Sequence[int], use_tqdm: bool
    ) -> list[RequestOutput]:
        """Mutates: all of them to their end; whatever breaks in ends them."""
        collectors = self._driver.submit(prompts, params, priorities)
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
                    done = {collector for collector in self._driver.step() & unfinished if collector.finished}
                    unfinished -= done
                    rate = (self._driver.num_tokens - tokens_before) / max(monotonic() - started, 1e-9)
                    bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
                    bar.update(len(done))
        finally:
            self._driver.cancel(collectors)
        return [collector.output() for collector in collectors]

    def _stream(self, prompt: Prompt, params: SamplingParams) -> Generator[RequestOutput, None, None]:
        """Mutates while it is iterated."""
        [collector] = self._driver.submit([prompt], [params], [0])
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
