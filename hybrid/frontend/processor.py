"""Processor: what a user passes as a prompt -> `Prompt`. Tokenises, reads pictures, expands their placeholders.

Knows the limits of the model; knows no requests that run. Everything wrong with an input is one ValueError sentence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hybrid.encoders.images import ImageSource, load_image
from hybrid.encoders.inputs import ImageProcessor, ProcessedImage
from hybrid.models.image_positions import ImagePositions
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import TokenIds
from hybrid.scheduler.request import ImageInput

from .image_reference import resolve_image
from .messages import Conversation
from .prompt import Prompt
from .tokenizer import Tokenizer

_FIRST_ENDS, _LAST_ENDS = 2, 62  # of messages: where conversations part, each found by rendering all before it
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
        self._images = images
        self._max_images = max_images
        self._no_images = no_images
        if images is not None and tokenizer is not None:
            for token_id in (images.placeholder_id, images.image_token_id):
                if not tokenizer.token(token_id):
                    raise ValueError(f"the tokenizer has no token {token_id}, which stands for an image")

    @property
    def images(self) -> ImageProcessor | None:
        """What makes pictures ready; None where the model takes none."""
        return self._images

    def num_image_tokens(self, image: ImageSource) -> int:
        """Tokens that a picture makes a prompt longer by, with those around and between its own. Raises ValueError."""
        if self._images is None:
            raise ValueError(self._no_images)
        processed = self._images(load_image(resolve_image(image)))
        runs = [run for entry in processed.inputs for run in entry.runs]
        return len(self._ids(processed)) - len(runs) + sum(runs)

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
        self._refuse_images(len(images))
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
        if self._images is not None:
            mark = tokenizer.token(self._images.placeholder_id)
            pieces = text.split(mark)
            processed = self._process(images, len(pieces) - 1)
        texts = ["".join(p if isinstance(p, str) else tokenizer.token(p) for p in image.parts) for image in processed]
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
        self._refuse_images(len(images))
        processed: list[ProcessedImage] = []
        if self._images is not None:
            places = np.flatnonzero(token_ids == self._images.placeholder_id)
            processed = self._process(images, len(places))
            first, *others = np.split(token_ids, places)  # others begin with a placeholder
            parts = [part for image, piece in zip(processed, others) for part in (self._ids(image), piece[1:])]
            token_ids = np.concatenate([first, *parts])
        return self._finish(None, token_ids, processed, cache_salt, ())

    def _ids(self, image: ProcessedImage) -> TokenIds:
        """What replaces the picture's placeholder in token ids."""
        parts = (
            self._require_tokenizer("text around an image").encode(part, False).token_ids
            if isinstance(part, str)
            else [part]
            for part in image.parts
        )
        return np.concatenate([np.array(part, dtype=np.int32) for part in parts])

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
        inputs = [entry for image in images for entry in image.inputs]
        runs = [run for entry in inputs for run in entry.runs]
        repeats = np.ones(len(token_ids), dtype=np.int64)
        places = np.zeros(0, dtype=np.int64)
        if self._images is not None:
            places = np.flatnonzero(token_ids == self._images.image_token_id)
            if len(places) != len(runs):
                name = self._name(self._images.image_token_id)
                raise ValueError(
                    f"the prompt holds {name} {_times(len(places))} where its images make it {_times(len(runs))}"
                )
            repeats[places] = runs
        starts = np.concatenate([[0], np.cumsum(repeats)])  # of every token, and the end
        length = int(starts[-1])
        if length >= self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {length} tokens, more than the {self._max_model_len - 1} that max_model_len "
                f"{self._max_model_len} leaves room for"
            )
        placed = []
        for entry in inputs:
            first, last = places[0], places[len(entry.runs) - 1]
            placed.append(ImageInput(entry.mm_hash, int(starts[first]), int(starts[last + 1] - starts[first])))
            places = places[len(entry.runs) :]
        grids = [entry.grid for entry in inputs if entry.grid is not None]
        assert len(grids) in (0, len(inputs)), "positions follow all images or none"
        hints = sorted({*hints, *self._message_ends(token_ids)})
        return Prompt(
            text=text,
            token_ids=np.repeat(token_ids, repeats),
            images=tuple(placed),
            encoder_inputs={entry.mm_hash: entry for entry in inputs},
            resume_hints=_inside([int(starts[hint]) for hint in hints], length),
            cache_salt=cache_salt,
            image_positions=ImagePositions.of([image.offset for image in placed], grids) if grids else None,
        )

    def _refuse_images(self, num_images: int) -> None:
        if num_images and self._images is None:
            raise ValueError(f"{self._no_images}, and the prompt brings {num_images}")
        if self._max_images is not None and num_images > self._max_images:
            raise ValueError(f"the prompt brings {num_images} images, limit_mm_per_prompt allows {self._max_images}")

    def _process(self, sources: Sequence[ImageSource], num_placeholders: int) -> list[ProcessedImage]:
        """The pictures, as many as placeholders. Raises ValueError."""
        assert self._images is not None
        if num_placeholders != len(sources):
            name, count = self._name(self._images.placeholder_id), _count(len(sources), "image")
            if num_placeholders == 0:
                raise ValueError(f"the prompt brings {count} but no placeholder; write {name} where each belongs")
            raise ValueError(f"the prompt has {_count(num_placeholders, 'image placeholder')} ({name}) and {count}")
        processed = []
        for index, source in enumerate(sources):
            try:
                processed.append(self._images(load_image(resolve_image(source))))
            except ValueError as error:
                several = len(sources) > 1
                raise ValueError(f"image {index + 1} of {len(sources)}: {error}" if several else str(error)) from None
        return processed

    def _name(self, token_id: int) -> str:
        return f"token {token_id}" if self.tokenizer is None else repr(self.tokenizer.token(token_id))

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


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _inside(hints: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple(hint for hint in hints if 0 < hint < length)
