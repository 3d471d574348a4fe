"""The command line: `hybrid COMMAND`.

Each command lives in a file of this folder and is added to `app`. Nothing here imports torch: a command does so when
it runs, so that `hybrid --help` answers at once.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hybrid import __version__

from .calibrate import calibrate
from .chat import chat
from .command import Command, SeveralLoraModules
from .generate import generate
from .plan import plan
from .serve import serve


class Commands(TyperGroup):
    """A name may be two words, of which the first is a command too: `plan calibrate` beside `plan MODEL`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The longer name where there is one."""
        words = " ".join(args[:2])
        return super().resolve_command(ctx, [words, *args[2:]] if words in self.commands else args)


app = typer.Typer(
    name="hybrid",
    cls=Commands,
    help="Serve hybrid language models: six memory pools, one atomic admission.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,  # see command.py
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hybrid {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options that come before the command."""


app.command()(chat)
app.command()(generate)
app.command()(plan)
app.command("plan calibrate")(calibrate)
app.command()(serve)

for _command in app.registered_commands:
    _command.cls = SeveralLoraModules if _command.callback is serve else Command


def main() -> None:
    """Entry point of the `hybrid` script."""
    app()
