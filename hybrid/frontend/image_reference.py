"""References to pictures: `data:` and `file:` URLs become bytes and paths. Nothing is ever fetched over a network."""

import base64
import binascii
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit
from urllib.request import url2pathname

from hybrid.encoders.images import ImageSource


def is_url(reference: str) -> bool:
    """Whether it is no path."""
    return reference.partition(":")[0].lower() in ("data", "file", "ftp", "http", "https") and ":" in reference


def resolve_image(source: ImageSource) -> ImageSource:
    """What `encoders.images.load_image` reads. A string without a scheme is a path. Raises ValueError."""
    if not isinstance(source, str | Path):
        return source
    if isinstance(source, str):
        scheme = source.split(":", 1)[0].lower() if ":" in source else ""
        if scheme == "data":
            return _data(source)
        if scheme in ("http", "https", "ftp"):
            raise ValueError(f"{brief(source)} is not fetched; pass the picture itself, a path or a data: URL")
        if scheme == "file":
            return Path(url2pathname(urlsplit(source).path))
    return Path(source)


def _data(url: str) -> bytes:
    """The bytes in a data: URL (RFC 2397)."""
    header, comma, body = url.partition(",")
    if not comma:
        raise ValueError(f"{brief(url)} is no data: URL: it has no comma")
    if not header.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode("".join(unquote(body).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{brief(url)} holds no valid base64: {error}") from None


def brief(text: str) -> str:
    """A reference as a message names it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
