"""What commands print beside tables of their own: a table of figures, and a line that is not wrapped."""

from rich.console import Console
from rich.table import Table


def figures_table(first: str, *columns: str) -> Table:
    """Without lines; `first` names the rows, the other columns are flush right."""
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def say(line: str) -> None:
    """Prints a line as it is."""
    Console().print(line, soft_wrap=True, highlight=False, markup=False)
