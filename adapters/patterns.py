"""Patterns: regular expressions of an adapter's configuration, tried where one that takes for ever can be ended.

Python matches a hostile expression for years without letting any other thread run; so a process of its own tries each
on the names that it will meet. Knows neither files nor tensors.
"""

import json
import subprocess
import sys
from collections.abc import Collection

SECONDS = 5.0  # for all of them; nearly all of it is the start of the process
_TRY = "import json, re, sys; a, b = json.load(sys.stdin); [(re.match(p, n), re.fullmatch(p, n)) for p in a for n in b]"


def check_speed(patterns: Collection[str], names: Collection[str], seconds: float = SECONDS) -> None:
    """patterns: valid ones. Raises ValueError where matching them with these names, or their beginnings, does not end
    soon."""
    if not patterns:
        return
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY],
            input=json.dumps([list(patterns), list(names)]),
            text=True,
            capture_output=True,
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"matching its regular expressions with the modules takes longer than {seconds:g} seconds"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"its regular expressions cannot be tried: {error}") from None
