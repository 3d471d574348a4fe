"""MediaFetcher: pictures by their URLs, fetched and decoded under a policy, or refused in one sentence.

The only way in which the server comes to a picture, and any program of ours to one that a URL names: paths of a client
never reach the code that opens them for a local user. Knows no route and no tokenizer. Every address is resolved once,
checked, and connected to as resolved.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import httpx
from PIL import Image

from hybrid.encoders.images import MAX_PIXELS, load_image

from .image_reference import brief, is_url, resolve_image
from .messages import picture_of

MAX_REDIRECTS = 3

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

# Inside the globally routed space, but leading elsewhere: NAT64, Teredo, 6to4, the metadata service of Azure.
_DETOURS = tuple(
    ipaddress.ip_network(network)
    for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16", "168.63.129.16/32")
)


def is_public(address: Address) -> bool:
    """Whether a server may connect to it for a stranger: no private, loopback, link-local or metadata address."""
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        return is_public(mapped)
    detour = any(address in network for network in _DETOURS if network.version == address.version)
    return address.is_global and not address.is_multicast and not detour


async def resolve_host(host: str, port: int) -> list[str]:
    """All addresses of a name, as the system resolves it."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPolicy:
    """allowed_domains: hosts that http(s) URLs may name, redirects included; none: nothing is fetched.
    allowed_local_path: folder under which files may be read; None: none. max_bytes: of one encoded picture. timeout:
    seconds per picture, redirects included. max_concurrency: pictures of one request that are read at a time.
    max_pixels: of all pictures of one request, decoded."""

    allowed_domains: Sequence[str] = ()
    allowed_local_path: str | Path | None = None
    max_bytes: int = 20 * 2**20
    max_images: int = 64
    timeout: float = 10.0
    max_concurrency: int = 4
    max_pixels: int = 4 * MAX_PIXELS
    domains: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.allowed_domains, str):
            raise ValueError(f"allowed_domains must be a list of host names, got {self.allowed_domains!r}")
        object.__setattr__(self, "domains", frozenset(_normal(domain) for domain in self.allowed_domains))
        for name in ("max_bytes", "max_images", "max_concurrency", "max_pixels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        if not self.timeout > 0:
            raise ValueError(f"timeout {self.timeout} is not more than 0 seconds")
        if self.allowed_local_path is not None and not Path(self.allowed_local_path).is_dir():
            raise ValueError(f"allowed_local_path {str(self.allowed_local_path)!r} is not a folder")


class MediaFetcher:
    """`resolve` and `may_connect` stand for the network in tests."""

    def __init__(
        self,
        policy: MediaPolicy,
        resolve: Resolver = resolve_host,
        may_connect: Callable[[Address], bool] = is_public,
    ) -> None:
        self._policy = policy
        self._resolve = resolve
        self._may_connect = may_connect
        # no environment: a proxy would resolve names anew
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=policy.timeout)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def read_messages(self, messages: object) -> object:
        """The messages with each picture replaced by {"type": "image", "image": <RGB picture>}. What is no list of
        messages passes unchanged, for `read_conversation` to refuse. Raises ValueError."""
        if not isinstance(messages, list):
            return messages
        pictures = [
            (number, reference)
            for number, message in enumerate(messages)
            for part in _parts(message)
            if (reference := _reference(part, number)) is not None
        ]
        if len(pictures) > self._policy.max_images:
            raise ValueError(f"{len(pictures)} images are more than the {self._policy.max_images} of one request")
        room = asyncio.Semaphore(self._policy.max_concurrency)
        pixels = 0

        async def fetch(number: int, reference: str) -> Image.Image:
            nonlocal pixels
            async with room:
                try:
                    picture = await self.fetch(reference)
                except ValueError as error:
                    raise ValueError(f"message {number}: {error}") from None
            pixels += picture.width * picture.height
            if pixels > self._policy.max_pixels:
                raise ValueError(f"the images of one request have more than {self._policy.max_pixels:,} pixels")
            return picture

        fetched = iter(await _all_or_none(fetch(number, reference) for number, reference in pictures))
        return [_replaced(message, number, fetched) for number, message in enumerate(messages)]

    async def fetch(self, url: str) -> Image.Image:
        """One picture. Raises ValueError for what is not allowed, too large, too slow, or no picture."""
        try:
            async with asyncio.timeout(self._policy.timeout):
                data = await self._read(url)
        except TimeoutError:
            raise ValueError(f"{brief(url)} took longer than {self._policy.timeout:g} seconds") from None
        return await asyncio.to_thread(load_image, data)

    async def _read(self, url: str) -> bytes:
        scheme = url.split(":", 1)[0].lower() if ":" in url else ""
        if scheme == "data":
            if len(url.partition(",")[2]) > 4 * (self._policy.max_bytes // 3 + 1):
                raise ValueError(f"{brief(url)} holds more than {self._policy.max_bytes} bytes")
            data = await asyncio.to_thread(resolve_image, url)
            assert isinstance(data, bytes)
            if len(data) > self._policy.max_bytes:  # of what is not base64
                raise ValueError(f"{brief(url)} holds more than {self._policy.max_bytes} bytes")
            return data
        if scheme in ("http", "https"):
            return await self._download(url)
        return await asyncio.to_thread(self._local, url, scheme)

    def _local(self, reference: str, scheme: str) -> bytes:
        root = self._policy.allowed_local_path
        refusal = (
            f"{brief(reference)} may not be read: pictures come as data: URLs, from hosts of --allowed-media-domains, "
            "or from the folder of --allowed-local-media-path"
        )
        if root is None or scheme not in ("", "file"):
            raise ValueError(refusal)
        path = reference
        if scheme == "file":
            try:
                parts = urlsplit(reference)
            except ValueError:
                raise ValueError(refusal) from None
            if parts.netloc not in ("", "localhost"):
                raise ValueError(refusal)
            path = unquote(parts.path)
        try:
            folder = Path(root).resolve(strict=True)
            real = (folder / path).resolve(strict=True)
            if not real.is_relative_to(folder) or not real.is_file():
                raise ValueError(refusal)
            with real.open("rb") as file:
                data = file.read(self._policy.max_bytes + 1)
        except (OSError, RuntimeError, ValueError):  # one answer: whether a file exists does not show
            raise ValueError(refusal) from None
        if len(data) > self._policy.max_bytes:
            raise ValueError(f"{brief(reference)} is larger than {self._policy.max_bytes} bytes")
        return data

    async def _download(self, url: str) -> bytes:
        asked = brief(url)
        for _ in range(MAX_REDIRECTS + 1):
            try:
                request = await self._request(url)
                response = await self._client.send(request, stream=True)
                try:
                    if not response.has_redirect_location:
                        return await self._body(response, asked)
                    url = urljoin(url, response.headers["location"])
                finally:
                    await response.aclose()
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
                if isinstance(error, httpx.TimeoutException):
                    raise TimeoutError from None
                raise ValueError(f"{asked} could not be fetched: {type(error).__name__}") from None
        raise ValueError(f"{asked} redirects more than {MAX_REDIRECTS} times")

    async def _request(self, url: str) -> httpx.Request:
        """A request to the checked address itself: the name is not looked up a second time."""
        try:
            parts = urlsplit(url)
            host, port = _normal(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ValueError(f"{brief(url)} is no URL") from None
        if parts.scheme not in ("http", "https") or parts.username is not None or parts.password is not None:
            raise ValueError(f"{brief(url)} is not fetched: only http and https, without a user's name")
        if host not in self._policy.domains:
            raise ValueError(f"{brief(url)} is not fetched: {host!r} is none of --allowed-media-domains")
        addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in await self._resolve(host, port)]
        if not addresses or not all(self._may_connect(address) for address in addresses):
            raise ValueError(f"{brief(url)} is not fetched: {host!r} does not lead to a public address")
        name = f"[{host}]" if ":" in host else host
        default = port == (443 if parts.scheme == "https" else 80)
        return self._client.build_request(
            "GET",
            httpx.URL(url).copy_with(host=str(addresses[0]), fragment=None),
            headers={"host": name if default else f"{name}:{port}", "accept-encoding": "identity"},
            extensions={"sni_hostname": host},
        )

    async def _body(self, response: httpx.Response, asked: str) -> bytes:
        limit = self._policy.max_bytes
        if response.status_code != 200:
            raise ValueError(f"{asked} could not be fetched: HTTP status {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":  # may unpack to any size
            raise ValueError(f"{asked} could not be fetched: its content is compressed")
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > limit:
                raise ValueError(f"{asked} is larger than {limit} bytes")
        return bytes(data)


def read_picture(reference: str, policy: MediaPolicy) -> Image.Image:
    """A picture that the user of this machine named: a path, read as it is, or a URL, fetched as a client's would be.

    Needs a thread without an event loop. Raises ValueError.
    """
    if not is_url(reference):
        return load_image(Path(reference).expanduser())

    async def fetch() -> Image.Image:
        fetcher = MediaFetcher(policy)
        try:
            return await fetcher.fetch(reference)
        finally:
            await fetcher.aclose()

    return asyncio.run(fetch())


async def _all_or_none(fetches: Iterable[Awaitable[Image.Image]]) -> list[Image.Image]:
    """Results in order; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(one) for one in fetches]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _parts(message: object) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


def _reference(part: Any, number: int) -> str | None:
    """What a picture's part refers to; None for text. Raises ValueError for any other part."""
    try:
        picture = picture_of(part)
    except ValueError as error:
        raise ValueError(f"message {number}: {error}") from None
    if picture is None or isinstance(picture, str):
        return picture
    raise ValueError(f"message {number}: a part of type {part['type']!r} needs a URL, a string")


def _replaced(message: object, number: int, fetched: Iterable[Image.Image]) -> object:
    parts = _parts(message)
    if not isinstance(message, Mapping) or not parts:
        return message
    pictures = iter(fetched)
    content = [
        part if _reference(part, number) is None else {"type": "image", "image": next(pictures)} for part in parts
    ]
    return {**message, "content": content}


def _normal(host: str) -> str:
    """A host name as it is compared: lower case, ASCII, without the root's dot. Raises ValueError."""
    host = host.strip().lower().removesuffix(".")
    return host if host.isascii() else host.encode("idna").decode("ascii")
