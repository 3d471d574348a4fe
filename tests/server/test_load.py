"""Many clients at once that ask for everything and often leave: nobody waits for ever, nothing stays behind.

LOAD_SECONDS: how long a round takes; a few are enough to meet every kind of end.
"""

import asyncio
import base64
import os
import random
from collections import Counter
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from hybrid.checkpoints import find_checkpoint
from hybrid.models.loading import read_config
from tests.adapters.written import write_adapter
from tests.server.serving import PATIENCE, process

SECONDS = float(os.environ.get("LOAD_SECONDS", "4"))
# Caches of kernels, pools and threads fill for some rounds, longer on a busy machine; a leak never comes to an end.
MOST_ROUNDS = 8
CLIENTS = 64
MOST_GROWTH = 10 * 2**20  # bytes in a round: what an allocator keeps varies, a leak of every request is more
PICTURES = [
    "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    for path in sorted(Path("examples/pictures").glob("*.png"))
]
EVERYTHING = {"answered", "streamed", "left", "busy", "timed out"}


def some_request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Path and body. One of eight runs into the server's time-out."""
    common = {
        "model": rng.choice(["tiny", "poet", "clerk"]),
        "stream": rng.random() < 0.5,
        "n": rng.choice([1, 1, 2]),
        "seed": rng.randrange(2**32),
        "max_tokens": rng.randint(1, 40),
    }
    if rng.random() < 1 / 8:
        common |= {"max_tokens": 1500, "ignore_eos": True}
    text = f"What is {rng.randrange(10**6)} in words?"
    if rng.random() < 0.5:
        return "/v1/completions", {**common, "prompt": text}
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if rng.random() < 0.5:
        content.insert(0, {"type": "image_url", "image_url": {"url": rng.choice(PICTURES)}})
    return "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": content}]}


async def ask(client: httpx.AsyncClient, rng: random.Random) -> str:
    """How one request ended, as one of EVERYTHING. A third of the clients leave before the end, wherever that is."""
    path, body = some_request(rng)
    try:
        async with asyncio.timeout(rng.uniform(0.0, 0.5) if rng.random() < 1 / 3 else None):
            async with client.stream("POST", path, json=body) as answer:
                content = (await answer.aread()).decode()
    except TimeoutError:
        return "left"
    if answer.status_code == 429:
        assert int(answer.headers["retry-after"]) >= 1
        return "busy"
    if answer.status_code == 504 or '"timeout_error"' in content:
        return "timed out"
    assert answer.status_code == 200, content
    if not body["stream"]:
        assert len(answer.json()["choices"]) == body["n"]
        return "answered"
    assert '"error"' not in content and content.endswith("data: [DONE]\n\n")
    assert content.count('"finish_reason":"stop"') + content.count('"finish_reason":"length"') == body["n"]
    return "streamed"


async def load(url: str, seconds: float, seed: int) -> Counter[str]:
    """How requests of all the clients ended. No one may take longer than PATIENCE."""
    end = monotonic() + seconds
    ends: Counter[str] = Counter()

    async def one(number: int) -> None:
        rng = random.Random(f"{seed}, {number}")
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            while monotonic() < end:
                how = await ask(client, rng)
                ends[how] += 1
                if how == "busy":
                    await asyncio.sleep(rng.uniform(0.0, 0.2))  # a little sooner than was asked for

    async with asyncio.timeout(seconds + PATIENCE), asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(one(number))
    return ends


def rest(client: httpx.Client) -> None:
    """Until every unit is free or cached; fails after PATIENCE."""
    deadline = monotonic() + PATIENCE
    while in_use := [
        pool for pool in client.get("/v1/pools").json()["pools"] if pool["free"] + pool["cached"] != pool["capacity"]
    ]:
        assert monotonic() < deadline, in_use
    metrics = client.get("/metrics").text
    assert 'hybrid:num_requests_running{model_name="tiny"} 0.0' in metrics
    assert 'hybrid:num_requests_waiting{model_name="tiny"} 0.0' in metrics


def test_clients_that_come_and_go(tmp_path: Path) -> None:
    targets = {
        name: shape for name, shape in read_config(find_checkpoint("tiny")).lora_targets().items() if "q_proj" in name
    }
    for name, rank in (("poet", 4), ("clerk", 16)):
        write_adapter(tmp_path / name, targets, rank)
    arguments = [f"--lora-modules={name}={tmp_path / name}" for name in ("poet", "clerk")]
    arguments += ["--max-lora-rank=16", "--max-loras=1", "--max-num-seqs=16", "--max-waiting=24", "--memory=8MiB"]
    arguments += ["--max-num-batched-tokens=32", "--request-timeout=2", "--threads=1"]
    with (
        process(*arguments) as (running, url),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        log: list[str] = []
        assert running.stderr is not None
        reader = Thread(target=log.extend, args=(running.stderr,))
        reader.start()
        server = psutil.Process(running.pid)
        ends: Counter[str] = Counter()
        sizes: list[int] = []
        for seed in range(MOST_ROUNDS):
            ends += asyncio.run(load(url, SECONDS, seed))
            rest(client)
            sizes.append(server.memory_info().rss)
            if len(sizes) > 1 and sizes[-1] - sizes[-2] < MOST_GROWTH and set(ends) == EVERYTHING:
                break
        print(f"{dict(ends)}; MiB after each round: {[size >> 20 for size in sizes]}")
        running.terminate()
        running.wait(PATIENCE)
        reader.join()
    assert set(ends) == EVERYTHING
    assert sizes[-1] - sizes[-2] < MOST_GROWTH
    assert not [line for line in log if "Traceback" in line or "ERROR" in line]
