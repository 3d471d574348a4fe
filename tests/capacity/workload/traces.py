"""Small traces in the published formats, made up; and prompts written out as the tokens they stand for."""

import gzip
import json
from pathlib import Path
from typing import Any

from hybrid.capacity.workload.arrival import Arrival
from hybrid.capacity.workload.segments import token_ids

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:00:01.5000000,700,12\r\n"
    "2023-11-16 18:00:01.7500009,1300,0\r\n"
    "2023-11-16 18:00:04.0000000,0,55"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 23:59:59+00:00,900,40\n"
    "2024-05-11 00:00:00.009930+00:00,20,7\n"
    "\n"
    "2024-05-11 02:00:01.500000+02:00,30,8\n"
)
MOONCAKE = [
    {"timestamp": 1000, "input_length": 1200, "output_length": 30, "hash_ids": [7, 8, 9]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 4, "hash_ids": [7, 8]},
    {"timestamp": 3500, "input_length": 1000, "output_length": 9, "hash_ids": [7, 12]},
]
REQUESTS: list[dict[str, Any]] = [
    {"time": 5, "input_length": 300, "output_length": 20, "prefix": [["system", 200]], "session": "a"},
    {"think": 2.5, "input_length": 40, "output_length": 10, "session": "a", "images": ["cat"]},
    {"time": 7, "input_length": 250, "output_length": 1, "prefix": [["system", 200]], "adapter": "sql", "rank": 8},
    {"time": 7, "input_length": 60, "output_length": 5, "images": ["cat", "dog"], "priority": -1, "adapter": "sql"},
]


def written(folder: Path, name: str, text: str | bytes) -> Path:
    """The file, packed where its name says so."""
    path = folder / name
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def json_lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def tokens(arrival: Arrival) -> list[int]:
    return list(map(int, token_ids(arrival.prompt, vocab_size=2**31 - 1)))


def common(first: list[int], second: list[int]) -> int:
    """Tokens with which both begin."""
    for position, (left, right) in enumerate(zip(first, second)):
        if left != right:
            return position
    return min(len(first), len(second))
