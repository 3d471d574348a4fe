"""Numbers of tokens as people write them."""

import re


def parse_tokens(name: str, value: str) -> int:
    """ "8k" is 8,192. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", value.strip().lower())
    if match is None:
        raise ValueError(f"{name} must be a number of tokens such as 512 or 8k, got {value!r}")
    return int(match[1]) * (1024 if match[2] else 1)
