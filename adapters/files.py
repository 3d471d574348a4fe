"""Files of an adapter's folder, looked at before they are opened. Knows no contents.

A folder comes from anybody: opening a pipe or a device in it may never end, and holds up every thread.
"""

import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """What shows that a file was replaced. size: bytes; mtime_ns: of its last change."""

    inode: int
    size: int
    mtime_ns: int


def stamp(path: Path) -> Stamp:
    """Raises FileNotFoundError, and ValueError for what is no file or cannot be looked at."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is no regular file")
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def folder(path: str | Path) -> Path:
    """`path`, with ~ for the user's own folder. Raises ValueError for one that is none or cannot be looked at."""
    try:
        found = Path(path).expanduser()
        if found.is_dir():
            return found
    except (OSError, ValueError, RuntimeError) as error:  # too long, not permitted, a user that does not exist
        raise ValueError(f"{path} cannot be read: {error}") from None
    raise ValueError(f"{path} is no folder with an adapter")
