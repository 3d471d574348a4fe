"""Slash commands of a chat: one line in, what to say about it out. Knows no terminal."""

from rich.console import RenderableType

from .chat_session import ChatSession
from .stats_table import stats_table

HELP = """\
/image PATH   attach a picture, by path or URL, to the next question
/clear        forget the conversation
/system TEXT  start anew under this system message; without TEXT: under none
/stats        the six pools, and what the prefix cache saved
/help         this list
/exit         leave; so do Ctrl-D, and Ctrl-C with nothing typed. Ctrl-C stops an answer"""


class Leave(Exception):
    """The user wants to go."""


def attach(session: ChatSession, reference: str) -> str:
    """Mutates the session. What to say about it. Raises ValueError."""
    shown = reference if len(reference) <= 200 else f"{reference[:200]}..."  # a data: URL is the picture itself
    return f"attached {shown}: {session.attach(reference)} tokens; it goes with your next message"


def run_command(session: ChatSession, line: str) -> RenderableType:
    """Mutates the session as the command says. Raises ValueError with a sentence for what is wrong, Leave to go."""
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    if name == "/image":
        path = (
            argument[1:-1] if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "'\"" else argument
        )
        if not path:
            raise ValueError("/image needs the path of a picture")
        return attach(session, path)
    if name == "/system":
        session.set_system(argument)
        return "new system message; the conversation starts anew" if argument else "no system message any more"
    if argument and name in ("/clear", "/stats", "/help", "/exit", "/quit"):
        raise ValueError(f"{name} takes nothing after it, got {argument!r}")
    if name == "/clear":
        session.clear()
        return "the conversation starts anew"
    if name == "/stats":
        return stats_table(session.stats())
    if name == "/help":
        return HELP
    if name in ("/exit", "/quit"):
        raise Leave
    raise ValueError(f"there is no command {name!r}; /help lists them")
