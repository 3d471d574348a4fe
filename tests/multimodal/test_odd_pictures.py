"""Pictures that break others are answered or refused in one clear sentence, by `LLM` and by a running server, for the
bundled model and one of a published type; the engine lives on and holds nothing."""

import base64
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hybrid import LLM, SamplingParams
from hybrid.engine_args import EngineArgs
from hybrid.scheduler.stats import SchedulerStats
from tests.server.serving import Running, serving

from .oracle import Oracle, all_cases, picture

MODELS = ("tiny", "llava: CLIP")
SMALL = picture(4, 20, 20)
WEIGHTS = {"memory": "16MiB", "max_num_seqs": 4, "num_threads": 1}


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(*chunks: bytes, width: int = 20, height: int = 20) -> bytes:
    """Grey, of the given chunks between header and end."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IEND", b"")


def pixels(rows: int = 20, more: int = 0) -> bytes:
    return chunk(b"IDAT", zlib.compress(bytes(21 * rows + more), 9))


def text_chunk() -> bytes:
    information = PngInfo()
    information.add_text("comment", "x" * 10_000_000)
    return encoded(SMALL, "PNG", pnginfo=information)


def archive() -> bytes:
    file = BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as zipped:
        zipped.writestr("picture.png", bytes(50_000_000))
    return file.getvalue()


ANSWERED: Mapping[str, Callable[[], bytes]] = {
    "1x1": lambda: encoded(Image.new("RGB", (1, 1), "red"), "PNG"),
    "1x10000": lambda: encoded(Image.new("RGB", (1, 10_000), "red"), "PNG"),
    "10000x1": lambda: encoded(Image.new("L", (10_000, 1)), "PNG"),
    "palette with transparency": lambda: encoded(SMALL.quantize(8), "PNG", transparency=0),
    "palette with alpha": lambda: encoded(SMALL.quantize(4), "PNG", transparency=bytes((0, 9, 99, 255))),
    "16-bit grey": lambda: encoded(Image.fromarray(np.full((9, 7), 65535, dtype=np.uint16)), "PNG"),
    "animated GIF": lambda: encoded(SMALL, "GIF", save_all=True, append_images=[picture(5, 20, 20)] * 3),
    "animated WebP": lambda: encoded(SMALL, "WEBP", save_all=True, append_images=[picture(5, 20, 20)] * 3),
    "EXIF-rotated JPEG": lambda: encoded(picture(2, 30, 20), "JPEG", exif=exif(6)),
    "EXIF of no meaning": lambda: encoded(picture(2, 30, 20), "JPEG", exif=exif(77)),
    "CMYK JPEG": lambda: encoded(SMALL.convert("CMYK"), "JPEG"),
    "fewer rows than it says": lambda: png(pixels(rows=2)),  # the others are black
    "a huge text chunk": text_chunk,
    "more data than pixels": lambda: png(pixels(more=100_000_000)),
}
REFUSED: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "12000x12000": (lambda: encoded(Image.new("1", (12_000, 12_000)), "PNG"), "has 12000 x 12000 pixels; at most"),
    "too long": (lambda: png(pixels(), width=1, height=70_000), "has 1 x 70000 pixels; at most"),
    "2**31 pixels a side": (lambda: png(pixels(), width=2**31 - 1, height=2**31 - 1), "pixels"),
    "truncated PNG": (lambda: encoded(SMALL, "PNG")[:-40], "cannot be decoded"),
    "truncated JPEG": (lambda: encoded(picture(4, 200, 200), "JPEG")[:-900], "cannot be decoded"),
    "zero bytes": (lambda: b"", "is not an image"),
    "SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image"),
    "HEIC": (lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "is not an image"),
    "a compressed text bomb": (
        lambda: png(chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(100_000_000), 9)), pixels()),
        "cannot be opened as an image: Decompressed data too large",
    ),
    "a zip bomb": (archive, "is not an image"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "tiny":
        return "tiny"
    return str(Oracle(all_cases()[request.param], tmp_path_factory.mktemp("checkpoint")).folder)


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(model, **WEIGHTS)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[Running]:
    with serving(EngineArgs(model=model, **WEIGHTS)) as running:  # type: ignore[arg-type]
        yield running


def question(image: object) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": image}, {"type": "text", "text": "What?"}]
    return [{"role": "user", "content": parts}]


def assert_idle(stats: SchedulerStats) -> None:
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    for name, ledger in stats.ledgers.items():
        assert ledger.held == ledger.pinned == ledger.pending == 0, f"{name}: {ledger}"


def test_llm_answers(llm: LLM) -> None:
    outputs = llm.chat([question(make()) for make in ANSWERED.values()], SamplingParams(max_tokens=2), use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(ANSWERED)
    assert_idle(llm.stats())


def test_llm_refuses(llm: LLM) -> None:
    for make, message in REFUSED.values():
        with pytest.raises(ValueError, match=message) as refused:
            llm.chat(question(make()), use_tqdm=False)
        assert_one_sentence(str(refused.value))
    assert_idle(llm.stats())
    [output] = llm.chat([{"role": "user", "content": "Hello"}], use_tqdm=False)
    assert output.error is None


def test_a_server_answers_or_refuses(server: Running) -> None:
    for name, make in ANSWERED.items():
        status, body = ask(server, make())
        assert status == 200, f"{name}: {body}"
    for name, (make, message) in REFUSED.items():
        status, body = ask(server, make())
        assert status == 400, f"{name}: {body}"
        assert message in body["error"]["message"]
        assert_one_sentence(body["error"]["message"])
    assert server.http.get("/health").status_code == 200
    assert ask(server, encoded(SMALL, "PNG"))[0] == 200
    server.wait_for(lambda stats: stats.num_running == 0)
    assert_idle(server.stats())


def ask(server: Running, image: bytes) -> tuple[int, dict[str, Any]]:
    url = {"url": "data:application/octet-stream;base64," + base64.b64encode(image).decode()}
    answer = server.http.post("/v1/chat/completions", json={"messages": question(url), "max_tokens": 2})
    return answer.status_code, answer.json()


def assert_one_sentence(message: str) -> None:
    assert "\n" not in message
    assert len(message) < 300
