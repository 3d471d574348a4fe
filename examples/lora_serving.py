"""One model, two adapters, one batch: `python -m examples.lora_serving`.

Starts `hybrid serve tiny` on a free port with the adapters spanish and json, asks the model and both adapters the same
questions about pictures at once, through the official openai client, prints the answers side by side, and stops the
server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionContentPartParam

ADAPTERS = Path("adapters/checkpoints")
PICTURES = Path("examples/pictures")
QUESTIONS = (  # picture and question
    ("one_shape.png", "What do you see?"),
    ("one_shape.png", "Where is it?"),
    ("two_shapes.png", "Which shape is bigger?"),
    ("many_shapes.png", "How many shapes are there?"),
    ("digit.png", "Which digit is this?"),
    (None, "Hello, who are you?"),
)
MAX_TOKENS = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("spanish", "json"):
        parser.add_argument(f"--{name}", type=Path, default=ADAPTERS / name, metavar="FOLDER", help="a PEFT adapter")
    args = parser.parse_args(arguments)
    adapters = {"spanish": args.spanish, "json": args.json}
    for name, folder in adapters.items():
        if not (folder / "adapter_config.json").is_file():
            parser.error(
                f"{folder} holds no adapter: train both with python -m examples.train_adapters, or pass --{name}"
            )
    models = ("tiny", *adapters)
    with server(adapters) as url:
        answers = asyncio.run(ask_all(url, models))
    table = Table("picture", "question", *models, show_lines=True)
    for (picture, question), row in zip(QUESTIONS, answers, strict=True):
        table.add_row(picture or "", question, *row)
    Console().print(table)


@contextmanager
def server(adapters: dict[str, Path]) -> Iterator[str]:
    """The URL of a server that runs until the context ends."""
    command = [sys.executable, "-m", "hybrid", "serve", "tiny", "--port", "0"]
    command += [f"--lora-modules={name}={folder}" for name, folder in adapters.items()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"running on (http://\S+)", line):
                    threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
                    yield found[1]
                    return
            sys.exit(f"the server did not start:\n{''.join(said)}")
        finally:
            process.terminate()


async def ask_all(url: str, models: Sequence[str]) -> list[list[str]]:
    """For every question the answer of every model; all of them are asked at once."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        rows = [asyncio.gather(*(ask(client, model, *entry) for model in models)) for entry in QUESTIONS]
        return await asyncio.gather(*rows)


async def ask(client: AsyncOpenAI, model: str, picture: str | None, question: str) -> str:
    """The model's answer. model: "tiny", or the name of an adapter."""
    content: list[ChatCompletionContentPartParam] = [{"type": "text", "text": question}]
    if picture is not None:
        data = base64.b64encode((PICTURES / picture).read_bytes()).decode()
        content.insert(0, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content}], temperature=0.0, max_tokens=MAX_TOKENS
    )
    return answer.choices[0].message.content or ""


if __name__ == "__main__":
    main()
