"""What commands print: tables of figures that are never cut, and lines that are not wrapped."""

from rich.console import Console
from rich.table import Table

WIDTH = 160  # of tables, also where the terminal is narrower or there is none


def figures_table(first: str, *columns: str) -> Table:
    """Without lines; `first` names the rows, the other columns are flush right."""
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def print_table(table: Table) -> None:
    """As wide as it needs."""
    console = _console()
    console.width = max(console.width, WIDTH)
    console.print(table)


def say(line: str) -> None:
    """Prints a line as it is."""
    _console().print(line, soft_wrap=True)


def _console() -> Console:
    """A name of a file may look like markup, or like an emoji."""
    return Console(markup=False, emoji=False, highlight=False)
