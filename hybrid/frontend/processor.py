"""Processor: what a user passes as a prompt -> `Prompt`: checked, rendered, tokenised, with its images in place.

Knows the limits of the model; knows no requests that run. Everything wrong with an input is one ValueError sentence.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hybrid.encoders.images import ImageSource
from hybrid.encoders.inputs import ImageProcessor, ProcessedImage
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import TokenIds

from .message_ends import rendered_ends, token_ends, without_last_end
from .messages import Conversation
from .prompt import Prompt
from .prompt_images import PromptImages
from .tokenizer import Tokenizer

_KEYS = ("prompt", "prompt_token_ids", "multi_modal_data", "cache_salt")


class PromptTooLongError(ValueError):
    """A prompt that leaves no room for an answer."""


class Processor:
    """Makes prompts for one model. Nothing changes after construction.

    images: None where the model takes none, and no_images says why. max_images: of one prompt; None: any number.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int] = (),
        images: ImageProcessor | None = None,
        max_images: int | None = None,
        no_images: str = "the model takes no images",
    ) -> None:
        """Raises ValueError for a tokenizer that cannot write a placeholder."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = np.array(sorted(eos_token_ids), dtype=np.int32)
        self._images = PromptImages(images, tokenizer, max_images, no_images)

    @property
    def images(self) -> ImageProcessor | None:
        """What makes pictures ready; None where the model takes none."""
        return self._images.processor

    def num_image_tokens(self, image: ImageSource) -> int:
        """Tokens that a picture makes a prompt longer by, with those around and between its own. Raises ValueError."""
        return self._images.num_tokens(image)

    def process(self, prompt: object, add_special_tokens: bool = True) -> Prompt:
        """prompt: text, token ids, or a mapping with "prompt" or "prompt_token_ids" and perhaps "multi_modal_data"
        ({"image": one picture or a list of them}) and "cache_salt". add_special_tokens: text gets what the tokenizer
        adds itself. Raises ValueError."""
        if isinstance(prompt, Mapping):
            return self._from_mapping(prompt, add_special_tokens)
        if isinstance(prompt, str):
            return self._from_text(prompt, (), "", add_special_tokens=add_special_tokens)
        return self._from_token_ids(self._token_ids(prompt), (), "")

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
        self._images.refuse(len(conversation.images))  # before the template does, less clearly
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message begins no new answer: it needs add_generation_prompt false")
        messages = conversation.messages
        text = tokenizer.render_chat(messages, add_generation_prompt, variables)
        if continue_final_message:
            text = without_last_end(text, messages[-1])
        ends = rendered_ends(tokenizer, messages, text, variables)
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
            return self._from_token_ids(self._token_ids(token_ids), images, salt)
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
        self._images.refuse(len(images))
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
        pieces, processed, mark = [text], [], ""
        if self.images is not None:
            mark = tokenizer.token(self.images.placeholder_id)
            pieces = text.split(mark)
            processed = self._read(images, len(pieces) - 1)
        texts = [self._images.text(image) for image in processed]
        encoded = tokenizer.encode(
            pieces[0] + "".join(replacement + piece for replacement, piece in zip(texts, pieces[1:])),
            add_special_tokens,
        )
        # where placeholders end in `text`, and how much longer what replaces them makes it from there on
        places = np.cumsum([len(piece) + len(mark) for piece in pieces[:-1]], dtype=np.int64)
        longer = np.cumsum([0, *(len(replacement) - len(mark) for replacement in texts)])
        moved = (end + int(longer[np.searchsorted(places, end, side="right")]) for end in ends)
        hints = (hint for end in moved if (hint := encoded.position_of(end)) is not None)
        return self._finish(text, encoded.token_ids, processed, cache_salt, hints)

    def _from_token_ids(self, token_ids: TokenIds, images: Sequence[ImageSource], cache_salt: str) -> Prompt:
        self._images.refuse(len(images))
        processed: list[ProcessedImage] = []
        if self.images is not None:
            places = np.flatnonzero(token_ids == self.images.placeholder_id)
            processed = self._read(images, len(places))
            first, *others = np.split(token_ids, places)  # others begin with a placeholder
            replaced = (np.concatenate([self._images.token_ids(i), p[1:]]) for i, p in zip(processed, others))
            token_ids = np.concatenate([first, *replaced])
        return self._finish(None, token_ids, processed, cache_salt, ())

    def _read(self, images: Sequence[ImageSource], num_placeholders: int) -> list[ProcessedImage]:
        """The pictures, as many as placeholders; of too many for the context the later ones are not even decoded."""
        processed, num_tokens = [], 0
        for image in self._images.read(images, num_placeholders):
            processed.append(image)
            num_tokens += sum(run for entry in image.inputs for run in entry.runs)
            if num_tokens >= self._max_model_len:
                raise self._too_long(f"{num_tokens} tokens in its first {len(processed)} images")
        return processed

    def _too_long(self, what: str) -> PromptTooLongError:
        most = self._max_model_len - 1
        return PromptTooLongError(
            f"the prompt has {what}, more than the {most} that max_model_len {self._max_model_len} leaves room for"
        )

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
        images: Sequence[ProcessedImage],
        cache_salt: str,
        hints: Iterable[int],
    ) -> Prompt:
        """`token_ids` have the image token once for every run of it; `hints` are positions in them."""
        if len(token_ids) == 0:
            raise ValueError("the prompt is empty")
        if int(token_ids.max()) >= self.vocab_size:  # a tokenizer may know more tokens than the model
            raise ValueError(f"token id {int(token_ids.max())} is not below the vocabulary size {self.vocab_size}")
        expanded = self._images.expand(token_ids, images)
        length = len(expanded.token_ids)
        if length >= self._max_model_len:
            raise self._too_long(f"{length} tokens")
        hints = sorted({*hints, *token_ends(token_ids, self._eos_token_ids, self.tokenizer)})
        moved = (int(expanded.starts[hint]) for hint in hints)
        return Prompt(
            text=text,
            token_ids=expanded.token_ids,
            images=expanded.images,
            encoder_inputs={entry.mm_hash: entry for entry in expanded.inputs},
            resume_hints=tuple(hint for hint in moved if 0 < hint < length),
            cache_salt=cache_salt,
            image_positions=expanded.positions(),
        )


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
