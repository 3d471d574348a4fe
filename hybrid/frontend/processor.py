"""Processor: what a user passes as a prompt -> `Prompt`. Tokenises, reads pictures, expands their placeholders.

Knows the limits of the model; knows no requests that run. Everything wrong with an input is one ValueError sentence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.encoders.images import ImageSource, load_image, mm_hash
from hybrid.encoders.preprocess import preprocess
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import TokenIds
from hybrid.scheduler.request import ImageInput

from .image_reference import resolve_image
from .messages import Conversation
from .prompt import Pixels, Prompt
from .tokenizer import Tokenizer

_FIRST_ENDS, _LAST_ENDS = 2, 62  # of messages: where conversations part, each found by rendering all before it
_KEYS = ("prompt", "prompt_token_ids", "multi_modal_data", "cache_salt")


class PromptTooLongError(ValueError):
    """A prompt that leaves no room for an answer."""


class Processor:
    """Makes prompts for one model. Nothing changes after construction.

    image_token_id, image_size [pixels] and num_image_tokens [per image] are None for a model without a vision tower.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int] = (),
        image_token_id: int | None = None,
        image_size: int | None = None,
        num_image_tokens: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = np.array(sorted(eos_token_ids), dtype=np.int32)
        self._image_token_id = image_token_id
        self._image_size = image_size
        self._num_image_tokens = num_image_tokens

    def process(self, prompt: object, add_special_tokens: bool = True) -> Prompt:
        """prompt: text, token ids, or a mapping with "prompt" or "prompt_token_ids" and perhaps "multi_modal_data"
        ({"image": one picture or a list of them}) and "cache_salt". add_special_tokens: text gets what the tokenizer
        adds itself. Raises ValueError."""
        if isinstance(prompt, Mapping):
            return self._from_mapping(prompt, add_special_tokens)
        if isinstance(prompt, str):
            return self._from_text(prompt, (), "", add_special_tokens=add_special_tokens)
        return self._finish(None, self._token_ids(prompt), (), "", ())

    def process_chat(
        self,
        conversation: Conversation,
        cache_salt: str = "",
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> Prompt:
        """The conversation through the chat template, up to where the assistant answers. The ends of its messages are
        resume hints. Raises ValueError.

        add_generation_prompt: false leaves out what begins an answer. continue_final_message: the prompt ends with the
        text of the last message, for the model to go on with. variables: further ones for the template.
        """
        tokenizer = self._require_tokenizer("a chat")
        self._refuse_images(len(conversation.images))  # before the template does, less clearly
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message begins no new answer: it needs add_generation_prompt false")
        messages = conversation.messages
        text = tokenizer.render_chat(messages, add_generation_prompt, variables)
        if continue_final_message:
            text = _without_last_end(text, messages[-1])
        ends = _rendered_ends(tokenizer, messages, text, variables)
        return self._from_text(text, conversation.images, cache_salt, add_special_tokens=add_special_tokens, ends=ends)

    def max_tokens(self, prompt: Prompt, params: SamplingParams) -> int:
        """Most tokens to generate: `params.max_tokens`, within the context. Raises ValueError for more `min_tokens`."""
        room = self._max_model_len - prompt.num_tokens
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > most:
            raise ValueError(
                f"min_tokens {params.min_tokens} does not fit: after a prompt of {prompt.num_tokens} tokens "
                f"max_model_len {self._max_model_len} leaves room for {room}"
            )
        return most

    def _from_mapping(self, prompt: Mapping[Any, Any], add_special_tokens: bool) -> Prompt:
        for key in prompt:
            if key not in _KEYS:
                raise ValueError(f"a prompt has no key {key!r}; there are {', '.join(_KEYS)}")
        images = _images(prompt.get("multi_modal_data"))
        salt = prompt.get("cache_salt") or ""
        if not isinstance(salt, str):
            raise ValueError(f"cache_salt must be a string, got {salt!r}")
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if (text is None) == (token_ids is None):
            raise ValueError("a prompt needs one of 'prompt' and 'prompt_token_ids'")
        if token_ids is not None:
            return self._finish(None, self._token_ids(token_ids), images, salt, ())
        if not isinstance(text, str):
            raise ValueError(f"'prompt' must be a string, got {type(text).__name__}")
        return self._from_text(text, images, salt, add_special_tokens=add_special_tokens)

    def _from_text(
        self,
        text: str,
        images: Sequence[ImageSource],
        cache_salt: str,
        *,
        add_special_tokens: bool,
        ends: Iterable[int] = (),
    ) -> Prompt:
        """`ends`: characters at which a message ends; only asked for once the prompt is known to fit."""
        if not text:
            raise ValueError("the prompt is empty")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the prompt is not valid Unicode: {error}") from None
        tokenizer = self._require_tokenizer("text")
        most = self._max_model_len * tokenizer.max_chars_per_token
        if len(text) > most:  # as in vLLM: not worth the minutes of tokenising it
            raise PromptTooLongError(
                f"the prompt has {len(text):,} characters, more than the {most:,} that fit into max_model_len "
                f"{self._max_model_len}"
            )
        encoded = tokenizer.encode(text, add_special_tokens)
        hints = (hint for end in ends if (hint := encoded.position_of(end)) is not None)
        return self._finish(text, encoded.token_ids, images, cache_salt, hints)

    def _require_tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"{what} needs a tokenizer, which skip_tokenizer_init left out; pass token ids")
        return self.tokenizer

    def _token_ids(self, value: object) -> TokenIds:
        if (
            isinstance(value, str | bytes | bytearray | memoryview)
            or not isinstance(value, Sequence | np.ndarray)
            or (isinstance(value, np.ndarray) and value.ndim == 0)
        ):
            raise ValueError(f"a prompt must be text, a list of token ids or a mapping, got {type(value).__name__}")
        for token_id in value:
            if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
                raise ValueError(f"token ids must be integers, got {token_id!r}")
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"token id {token_id} is not below the vocabulary size {self.vocab_size}")
        return np.array(value, dtype=np.int32)

    def _finish(
        self,
        text: str | None,
        token_ids: TokenIds,
        sources: Sequence[ImageSource],
        cache_salt: str,
        hints: Iterable[int],
    ) -> Prompt:
        """`hints` are positions in `token_ids`, where a placeholder is still one token."""
        if len(token_ids) == 0:
            raise ValueError("the prompt is empty")
        if int(token_ids.max()) >= self.vocab_size:  # a tokenizer may know more tokens than the model
            raise ValueError(f"token id {int(token_ids.max())} is not below the vocabulary size {self.vocab_size}")
        places = self._placeholders(token_ids, len(sources))
        length = len(token_ids) + len(places) * ((self._num_image_tokens or 1) - 1)
        if length >= self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {length} tokens, more than the {self._max_model_len - 1} that max_model_len "
                f"{self._max_model_len} leaves room for"
            )
        hints = sorted({*hints, *self._message_ends(token_ids)})
        if not sources:
            return Prompt(text, token_ids, resume_hints=_inside(hints, length), cache_salt=cache_salt)
        assert self._num_image_tokens is not None
        arrays = [self._pixels(source, index, len(sources)) for index, source in enumerate(sources)]
        hashes = [mm_hash(array) for array in arrays]
        repeats = np.ones(len(token_ids), dtype=np.int64)
        repeats[places] = self._num_image_tokens
        starts = np.concatenate([[0], np.cumsum(repeats)])  # of every token, and the end
        return Prompt(
            text=text,
            token_ids=np.repeat(token_ids, repeats),
            images=tuple(
                ImageInput(name, int(starts[place]), self._num_image_tokens) for name, place in zip(hashes, places)
            ),
            pixels=dict(zip(hashes, arrays)),
            resume_hints=_inside([int(starts[hint]) for hint in hints], length),
            cache_salt=cache_salt,
        )

    def _refuse_images(self, num_images: int) -> None:
        if num_images and self._image_size is None:
            raise ValueError(f"the model takes no images, and the prompt brings {num_images}")

    def _placeholders(self, token_ids: TokenIds, num_images: int) -> NDArray[np.int64]:
        """Positions of the image tokens, as many as images."""
        self._refuse_images(num_images)
        if self._image_token_id is None or self._image_size is None:
            return np.zeros(0, dtype=np.int64)
        places = np.flatnonzero(token_ids == self._image_token_id)
        if len(places) == num_images:
            return places
        name = f"token {self._image_token_id}"
        if self.tokenizer is not None:
            name = repr(self.tokenizer.decode((self._image_token_id,)))
        if len(places) == 0:
            raise ValueError(
                f"the prompt brings {_count(num_images, 'image')} but no placeholder; write {name} where each belongs"
            )
        raise ValueError(
            f"the prompt has {_count(len(places), 'image placeholder')} ({name}) and {_count(num_images, 'image')}"
        )

    def _pixels(self, source: ImageSource, index: int, count: int) -> Pixels:
        assert self._image_size is not None
        try:
            return preprocess(load_image(resolve_image(source)), self._image_size)
        except ValueError as error:
            raise ValueError(f"image {index + 1} of {count}: {error}" if count > 1 else str(error)) from None

    def _message_ends(self, token_ids: TokenIds) -> list[int]:
        """Positions after every end-of-text token, and after the line break that follows it."""
        ends = np.flatnonzero(np.isin(token_ids, self._eos_token_ids)) + 1
        return [
            end + 1
            if end < len(token_ids)
            and self.tokenizer is not None
            and self.tokenizer.decode((int(token_ids[end]),)) == "\n"
            else end
            for end in ends.tolist()
        ]


def _without_last_end(text: str, message: Mapping[str, Any]) -> str:
    """The rendered conversation up to the end of its last message's text. Raises ValueError if there is no such."""
    content = message["content"]
    if not isinstance(content, str):
        content = next((part["text"] for part in reversed(content) if part["type"] == "text"), "")
    words = content.strip()  # templates often strip it
    start = text.rfind(words)
    if not words or start < 0:
        raise ValueError("continue_final_message needs a last message whose text the chat template shows")
    end = start + len(words)
    trailing = content[len(content.rstrip()) :]
    return text[:end] + (trailing if text.startswith(trailing, end) else "")


def _rendered_ends(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], text: str, variables: Mapping[str, Any]
) -> Iterator[int]:
    """Characters of `text`, the rendered conversation, at which its messages end, the last one's left out; of very many
    messages the first and the last ones."""
    counts = [*range(1, len(messages))]
    if len(counts) > _FIRST_ENDS + _LAST_ENDS:
        counts = counts[:_FIRST_ENDS] + counts[-_LAST_ENDS:]
    for count in counts:
        try:
            part = tokenizer.render_chat(messages[:count], False, variables)
        except ValueError:  # a template may refuse a conversation that ends there
            continue
        if text.startswith(part):
            yield len(part)


def _images(data: object) -> list[ImageSource]:
    """The pictures in "multi_modal_data"."""
    if data is None:
        return []
    if not isinstance(data, Mapping) or set(data) - {"image"}:
        raise ValueError(f"multi_modal_data must map 'image' to one picture or a list of them, got {_brief(data)}")
    images = data.get("image")
    if images is None:
        return []
    return list(images) if isinstance(images, list | tuple) else [images]


def _brief(data: object) -> str:
    return f"keys {sorted(map(str, data))}" if isinstance(data, Mapping) else type(data).__name__


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"


def _inside(hints: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple(hint for hint in hints if 0 < hint < length)
