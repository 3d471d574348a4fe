"""Pictures come from where they may come from, and from nowhere else."""

import asyncio
import base64
import ipaddress
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hybrid.frontend.media import MediaFetcher, MediaPolicy, is_public
from hybrid.frontend.messages import read_conversation
from tests.server.http import media_host


def png(color: tuple[int, int, int] = (10, 20, 30)) -> bytes:
    file = BytesIO()
    Image.new("RGB", (4, 3), color).save(file, "PNG")
    return file.getvalue()


def data_url(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def message(*references: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in references]
    return [{"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}]


async def local(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def fetched(url: str, policy: MediaPolicy, resolve: Any = local, anywhere: bool = True) -> Image.Image:
    fetcher = MediaFetcher(policy, resolve, (lambda address: True) if anywhere else is_public)
    try:
        return await fetcher.fetch(url)
    finally:
        await fetcher.aclose()


def fetch(url: str, **policy: Any) -> Image.Image:
    return asyncio.run(fetched(url, MediaPolicy(**policy)))


def ok(body: bytes, headers: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nConnection: close\r\n{headers}\r\n".encode() + body


def redirect(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {to}\r\n\r\n".encode()


def test_messages_come_back_with_pictures_in_order() -> None:
    async def run() -> object:
        fetcher = MediaFetcher(MediaPolicy(max_concurrency=1))
        return await fetcher.read_messages(message(data_url(png((1, 2, 3))), data_url(png((4, 5, 6)))))

    pictures = read_conversation(asyncio.run(run())).images
    assert [picture.getpixel((0, 0)) for picture in pictures if isinstance(picture, Image.Image)] == [
        (1, 2, 3),
        (4, 5, 6),
    ]


@pytest.mark.parametrize("key", ["image", "image_url", "image_pil", "url", "path"])
@pytest.mark.parametrize("kind", ["image", "image_url", "input_image", "image_pil"])
def test_no_spelling_of_a_part_reaches_a_file(tmp_path: Path, key: str, kind: str) -> None:
    (tmp_path / "a.png").write_bytes(png())
    for reference in (str(tmp_path / "a.png"), (tmp_path / "a.png").as_uri()):
        part = {"type": kind, key: reference}
        with pytest.raises(ValueError, match="may not be read"):
            asyncio.run(MediaFetcher(MediaPolicy()).read_messages([{"role": "user", "content": [part]}]))


@pytest.mark.parametrize("part", [{"type": "video", "url": "x"}, {"type": "image", "image": [1]}, {"type": "image"}])
def test_odd_parts_are_refused(part: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="message 0: a part of type"):
        asyncio.run(MediaFetcher(MediaPolicy()).read_messages([{"role": "user", "content": [part]}]))


def test_files_only_under_the_allowed_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a b.png").write_bytes(png())
    (tmp_path / "secret.png").write_bytes(png())
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    allowed = str(inside)
    assert fetch((inside / "a b.png").as_uri(), allowed_local_path=allowed).size == (4, 3)
    assert fetch("a b.png", allowed_local_path=allowed).size == (4, 3)
    for bad in ("link.png", "../secret.png", str(tmp_path / "secret.png"), "absent.png", ".", "file://host/a", "a\0b"):
        with pytest.raises(ValueError, match="may not be read"):
            fetch(bad, allowed_local_path=allowed)
    with pytest.raises(ValueError, match="larger than 5 bytes"):
        fetch("a b.png", allowed_local_path=allowed, max_bytes=5)


def test_data_urls_are_limited_and_checked() -> None:
    assert fetch(data_url(png())).size == (4, 3)
    with pytest.raises(ValueError, match="more than 9 bytes"):
        fetch(data_url(bytes(100)), max_bytes=9)
    with pytest.raises(ValueError, match="not an image"):
        fetch(data_url(b"no picture"))
    with pytest.raises(ValueError, match="base64"):
        fetch("data:image/png;base64,!!!")


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/a",
        "http://media.test.other.test/a",
        "http://user@media.test/a",
        "http://[::1/a",
        "ftp://media.test/a",
    ],
)
def test_hosts_outside_the_list_are_not_asked(url: str) -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError("resolved")

    with pytest.raises(ValueError, match=r"not fetched|no URL|may not be read"):
        asyncio.run(fetched(url, MediaPolicy(allowed_domains=["media.test"]), never))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1", "fe80::1",
     "fd00:ec2::254", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "168.63.129.16"],
)  # fmt: skip
def test_addresses_inside_are_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))

    async def inside(host: str, port: int) -> Sequence[str]:
        return ["93.184.215.14", address]

    with pytest.raises(ValueError, match="public address"):
        asyncio.run(fetched("http://media.test/a", MediaPolicy(allowed_domains=["media.test"]), inside, False))


def test_public_addresses_are_public() -> None:
    assert is_public(ipaddress.ip_address("93.184.215.14")) and is_public(ipaddress.ip_address("2606:4700::1111"))


def test_a_name_is_resolved_once_per_hop_and_that_address_is_asked() -> None:
    async def run() -> None:
        heads, resolved = [], []

        async def answer(head: str, writer: asyncio.StreamWriter) -> None:
            heads.append(head)
            writer.write(ok(png()))

        async def rebinding(host: str, port: int) -> Sequence[str]:
            resolved.append(host)
            return ["127.0.0.1"] if len(resolved) == 1 else ["10.0.0.1"]

        async with media_host(answer) as port:
            policy = MediaPolicy(allowed_domains=["Media.test."])
            assert (await fetched(f"http://media.test:{port}/a?b=1#c", policy, rebinding)).size == (4, 3)
            assert resolved == ["media.test"]
            assert heads[0].startswith("GET /a?b=1 HTTP/1.1") and f"host: media.test:{port}" in heads[0].lower()

    asyncio.run(run())


def test_redirects_stay_inside_the_list_and_end() -> None:
    async def run() -> None:
        async def answer(head: str, writer: asyncio.StreamWriter) -> None:
            path = head.split()[1]
            targets = {"/near": "/a", "/out": "http://other.test/a", "/loop": "/loop", "/file": "file:///etc/passwd"}
            writer.write(redirect(targets[path]) if path in targets else ok(png()))

        async with media_host(answer) as port:
            policy = MediaPolicy(allowed_domains=["media.test"])
            base = f"http://media.test:{port}"
            assert (await fetched(f"{base}/near", policy)).size == (4, 3)
            for path, reason in (("/out", "other.test"), ("/loop", "more than 3 times"), ("/file", "only http")):
                with pytest.raises(ValueError, match=reason):
                    await fetched(base + path, policy)

    asyncio.run(run())


def test_endless_slow_and_broken_answers_are_refused() -> None:
    async def run() -> None:
        async def answer(head: str, writer: asyncio.StreamWriter) -> None:
            path = head.split()[1]
            if path == "/endless":
                writer.write(ok(b""))
                while True:
                    writer.write(bytes(65536))
                    await writer.drain()
            elif path == "/silent":
                await asyncio.Event().wait()
            elif path == "/packed":
                writer.write(ok(png(), "Content-Encoding: gzip\r\n"))
            elif path == "/missing":
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            else:
                writer.write(b"nonsense\r\n\r\n")

        async with media_host(answer) as port:
            for path, reason in (
                ("/endless", "larger than 200000 bytes"),
                ("/silent", "took longer"),
                ("/packed", "compressed"),
                ("/missing", "404"),
                ("/nonsense", "could not be fetched"),
            ):
                seconds = 0.2 if path == "/silent" else 60.0
                policy = MediaPolicy(allowed_domains=["media.test"], max_bytes=200_000, timeout=seconds)
                with pytest.raises(ValueError, match=reason):
                    await fetched(f"http://media.test:{port}{path}", policy)

    asyncio.run(run())


def test_a_request_brings_only_so_many_pixels() -> None:
    """However few bytes they take."""

    async def read(**policy: Any) -> object:
        fetcher = MediaFetcher(MediaPolicy(**policy))
        try:
            return await fetcher.read_messages(message(*[data_url(png())] * 3))
        finally:
            await fetcher.aclose()

    assert len(read_conversation(asyncio.run(read(max_pixels=36))).images) == 3
    with pytest.raises(ValueError, match="the images of one request have more than 35 pixels"):
        asyncio.run(read(max_pixels=35))


def test_data_that_is_not_base64_is_limited_too() -> None:
    url = "data:image/png," + "".join(f"%{byte:02x}" for byte in png())
    assert fetch(url).size == (4, 3)
    with pytest.raises(ValueError, match="more than 90 bytes"):
        fetch("data:image/png," + "x" * 100, max_bytes=90)
