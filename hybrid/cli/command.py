"""A command as typer has them, with help in plain text, and one that reads --lora-modules as vLLM does. Knows no flags.

Rich's tables cut the names of flags where a terminal, or what reads the help, is 80 columns wide.
"""

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """Panels of options become sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Mutates the formatter."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            described = parameter.get_help_record(ctx)
            if described is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(described)
        for title, described_ones in sections.items():
            with formatter.section(title):
                formatter.write_dl(described_ones)


class SeveralLoraModules(Command):
    """A command whose --lora-modules takes several values at once, as in vLLM. Not for one that takes other arguments
    with "=" in them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeated: list[str] = []
        before = ""  # "flag" or "value" of --lora-modules
        for one in args:
            if one == "--lora-modules":
                before = "flag"
            elif before == "flag" or one.startswith("--lora-modules="):
                before = "value"
            elif before == "value" and not one.startswith("-") and ("=" in one or one.startswith("{")):
                repeated.append("--lora-modules")
            else:
                before = ""
            repeated.append(one)
        return super().parse_args(ctx, repeated)
