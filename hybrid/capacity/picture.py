"""Picture: where a plot is written, and what matplotlib is asked for. Knows no plan and no simulation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_picture(path: Path) -> None:
    """What takes long should not end with a picture that cannot be written. Raises ValueError for such a path, and
    without matplotlib."""
    known = new_figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"plot must be a file such as plan.png, one of {', '.join(sorted(known))}, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"plot {str(path)!r} lies in no folder that exists")
    if path.is_dir():
        raise ValueError(f"plot {str(path)!r} is a folder, not a file")


def new_figure(**options: Any) -> "Figure":
    """Raises ValueError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("a plot needs matplotlib: pip install 'hybrid-pools[plot]'") from None
    return Figure(**options)


def save(figure: "Figure", path: Path) -> None:
    """Raises ValueError where it cannot be written."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ValueError(f"plot {str(path)!r} cannot be written: {error}") from None
