"""Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length and hash_ids.

An id stands for a block of 512 tokens and for all that comes before it; equal ids are equal tokens, so prompts share
prefixes as the recorded ones did. https://github.com/kvcache-ai/Mooncake (FAST 2025)
"""

from pathlib import Path

from .columns import Columns
from .segments import MAX_NUMBER, Kind
from .trace_file import json_object, length, read_lines, seconds, shown, whole
from .workload import Workload

BLOCK_TOKENS = 512
FIELDS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def read_mooncake(path: Path) -> Workload:
    """Raises ValueError, naming the line, for what is no such file."""
    columns = Columns()

    def take(text: str) -> None:
        fields = json_object(text, FIELDS, FIELDS)
        time = seconds("timestamp", fields["timestamp"], per_second=1000)
        prompt_length = length("input_length", fields["input_length"])
        output_length = length("output_length", fields["output_length"])
        ids = fields["hash_ids"]
        blocks = -(-prompt_length // BLOCK_TOKENS)
        if not isinstance(ids, list) or len(ids) != blocks:
            count = f"{len(ids)} in " if isinstance(ids, list) else ""
            raise ValueError(
                f"hash_ids must be a list of {blocks:,}, one for every {BLOCK_TOKENS} tokens of input_length "
                f"{prompt_length:,}, got {count}{shown(ids)}"
            )
        for position, number in enumerate(ids):
            columns.add_segment(
                Kind.BLOCK.key(whole("hash_ids", number, 0, MAX_NUMBER)),
                min(BLOCK_TOKENS, prompt_length - position * BLOCK_TOKENS),
                ends_message=False,
            )
        columns.add(time, output_length)

    read_lines(path, take)
    return columns.workload(str(path))
