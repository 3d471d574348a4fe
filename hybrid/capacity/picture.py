"""Pictures: a matplotlib figure, and the file that it becomes. Knows nothing of what is drawn."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """Inches. Raises ValueError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("a plot needs matplotlib: pip install 'hybrid-pools[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Writes the file, whose ending says the format. Raises ValueError where it cannot."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ValueError(f"plot {str(path)!r} cannot be written: {error}") from None
