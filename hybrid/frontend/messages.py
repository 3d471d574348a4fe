"""Messages: a chat as users write it -> messages as chat templates read them, and the pictures in them.

Content is a string or a list of parts: {"type": "text", "text": ...}, {"type": "image", "image": ...} and
{"type": "image_url", "image_url": {"url": ...}}. An assistant's "tool_calls" are as in the OpenAI API; templates get
their arguments as mappings. Knows no tokenizer and opens no picture.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid.encoders.images import ImageSource

IMAGE_TYPES = ("image", "image_url", "input_image", "image_pil")
IMAGE_KEYS = ("image", "image_url", "image_pil", "url", "path")
TEXT_TYPES = ("text", "input_text")


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` for a template, with {"type": "image"} where a picture belongs; `images` in reading order."""

    messages: tuple[Mapping[str, Any], ...]
    images: tuple[ImageSource, ...]


def read_conversation(messages: object) -> Conversation:
    """Raises ValueError with the number of the message that is not as it should be."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ValueError(f"messages must be a list of mappings, got {type(messages).__name__}")
    if not messages:
        raise ValueError("the conversation is empty")
    images: list[ImageSource] = []
    read = []
    for index, message in enumerate(messages):
        try:
            read.append(_message(message, images))
        except ValueError as error:
            raise ValueError(f"message {index}: {error}") from None
    return Conversation(tuple(read), tuple(images))


def _message(message: object, images: list[ImageSource]) -> dict[str, Any]:
    """Mutates `images`: the message's pictures are appended."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message must be a mapping with 'role' and 'content', got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"'role' must be a string such as 'user', got {role!r}")
    if "tool_calls" in message:
        message = _with_calls(message)
    if content is None and role == "assistant":  # as with calls of tools
        content = ""
    if isinstance(content, str):
        return {**message, "content": content}
    if not isinstance(content, list | tuple):
        raise ValueError(f"'content' must be a string or a list of parts, got {type(content).__name__}")
    parts = [_part(part, images) for part in content]
    if all(part["type"] == "text" for part in parts):
        return {**message, "content": "".join(part["text"] for part in parts)}  # templates without parts read it too
    return {**message, "content": parts}


def _with_calls(message: Mapping[Any, Any]) -> dict[Any, Any]:
    """The message with the arguments of its calls as mappings; templates ask whether there is a list at all."""
    calls = message["tool_calls"]
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list | tuple):
        raise ValueError(f"'tool_calls' must be a list, got {type(calls).__name__}")
    return {**message, "tool_calls": [_call(call, index) for index, call in enumerate(calls)]}


def _call(call: object, index: int) -> dict[Any, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f'tool call {index} must be {{"function": {{"name", "arguments"}}, ...}}, got {call!r}')
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise ValueError(f"tool call {index}: 'arguments' are no JSON: {function['arguments']!r}") from None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"tool call {index}: 'arguments' must be a JSON object, got {arguments!r}")
    return {**call, "function": {**function, "arguments": arguments}}


def _part(part: object, images: list[ImageSource]) -> dict[str, str]:
    """Mutates `images`."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    picture = picture_of(part)
    if picture is not None:
        images.append(picture)
        return {"type": "image"}
    assert isinstance(part, Mapping)
    if not isinstance(part.get("text"), str):
        raise ValueError(f"a text part needs 'text', a string, got {part.get('text')!r}")
    return {"type": "text", "text": part["text"]}


def picture_of(part: object) -> Any:
    """What a part of a message brings as its picture: a reference to one, or the picture itself; None for text. Raises
    ValueError for any other part."""
    if isinstance(part, str):
        return None
    if not isinstance(part, Mapping):
        raise ValueError(f"a part of 'content' must be a mapping, got {type(part).__name__}")
    kind = part.get("type")
    if kind in TEXT_TYPES:
        return None
    if kind not in IMAGE_TYPES:
        raise ValueError(f"a part of type {kind!r} is not known; there are 'text', 'image' and 'image_url'")
    picture = next((part[key] for key in IMAGE_KEYS if part.get(key) is not None), None)
    if isinstance(picture, Mapping):
        picture = picture.get("url")
    if picture is None:
        raise ValueError(f"a part of type {kind!r} brings no picture")
    return picture
