"""`hybrid chat`: a conversation in the terminal, one answer for --prompt, or an answer for every line of a pipe.

Answers go to standard output and everything else to standard error, except in a terminal, where it is one dialogue.
"""

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from .chat_commands import Leave, attach, run_command
from .chat_session import ChatSession
from .options import (
    MODEL,
    AllowedLocalMediaPath,
    AllowedMediaDomains,
    Device,
    Dtype,
    EnableLora,
    Images,
    Lora,
    LoraModules,
    LoraTargetModules,
    MaxCpuLoras,
    MaxLoraRank,
    MaxLoras,
    MaxTokens,
    Memory,
    Seed,
    Temperature,
    Threads,
    close_output,
    complain,
    lora_options,
    lora_request,
    one_model,
    open_llm,
    picture_reader,
    read_anything,
    sampling_params,
)

ASK = "> "
# What a terminal would act upon instead of showing it; line breaks and tabs stay.
_UNSEEN = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def chat(
    model: Annotated[str | None, typer.Argument(help=f"{MODEL} Default: tiny.")] = None,
    model_option: Annotated[str | None, typer.Option("--model", help="The same, as an option.")] = None,
    image: Images = None,
    allowed_media_domains: AllowedMediaDomains = None,
    allowed_local_media_path: AllowedLocalMediaPath = None,
    prompt: Annotated[str | None, typer.Option(help="Answer this one question and leave.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = 512,
    seed: Seed = 0,
    memory: Memory = None,
    device: Device = None,
    threads: Threads = None,
    dtype: Dtype = "auto",
    enable_lora: EnableLora = False,
    lora_modules: LoraModules = None,
    lora: Lora = None,
    max_loras: MaxLoras = 4,
    max_lora_rank: MaxLoraRank = 64,
    max_cpu_loras: MaxCpuLoras = None,
    lora_target_modules: LoraTargetModules = None,
) -> None:
    """Chat with a model, about pictures too.

    Without --prompt it reads questions from the terminal, or one per line from a pipe.
    """
    read_anything()
    model = one_model(model, model_option)
    read = picture_reader(allowed_media_domains, allowed_local_media_path)
    loras = lora_options(enable_lora, lora_modules, max_loras, max_lora_rank, max_cpu_loras, lora_target_modules)
    llm = open_llm(
        model,
        memory=memory,
        device=device,
        threads=threads,
        dtype=dtype,
        seed=seed,
        max_num_seqs=8,
        lora=loras,
    )
    params = sampling_params(llm, temperature, max_tokens)
    session = ChatSession(llm, params, read, system or None, lora_request(llm, lora))
    try:
        attached = [attach(session, reference) for reference in image or []]
    except ValueError as error:
        complain(error)
        raise typer.Exit(2) from None
    try:
        if prompt is not None or not sys.stdin.isatty():
            for line in attached:
                complain(line)
        if prompt is not None:
            failed = not _answer(session, prompt)
        elif sys.stdin.isatty():
            failed = False
            _dialogue(session, [f"{model}: /help lists commands, Ctrl-D leaves", *attached])
        else:
            failed = _pipe(session)
    except BrokenPipeError:
        close_output()
        failed = True
    except OSError as error:
        close_output()
        complain(f"the answer cannot be written: {error.strerror}")
        failed = True
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)


def _answer(session: ChatSession, question: str) -> bool:
    """Mutates the session: the answer, whole, to standard output. False after a sentence about what went wrong."""
    try:
        text = "".join(session.ask(question))
    except ValueError as error:
        complain(error)
        return False
    print(text, flush=True)
    return True


def _pipe(session: ChatSession) -> bool:
    """Mutates the session: every line is a question or a command. Returns whether any of them failed."""
    console = Console(stderr=True)
    failed = False
    for line in sys.stdin:
        if not line.strip():
            continue
        if not line.startswith("/"):
            failed |= not _answer(session, line.rstrip("\r\n"))
            continue
        try:
            _say(console, run_command(session, line))
        except Leave:
            break
        except ValueError as error:
            complain(error)
            failed = True
    return failed


def _dialogue(session: ChatSession, greeting: list[str]) -> None:
    """Mutates the session: until the user leaves."""
    typed = _line_editor()
    console = Console()
    for line in greeting:
        _say(console, line, "dim")
    while True:
        try:
            line = input(ASK).strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if typed():
                continue
            return
        if not line:
            continue
        try:
            if line.startswith("/"):
                _say(console, run_command(session, line))
            else:
                _show_answer(session, line)
        except Leave:
            return
        except ValueError as error:
            _say(console, str(error), "red")
        except KeyboardInterrupt:
            _say(console, "\nstopped; this question and its answer are not kept", "dim")


def _say(console: Console, what: RenderableType, style: str | None = None) -> None:
    """Text stays as it is: no markup in it, and the terminal breaks its lines, so that paths can be copied."""
    console.print(what, markup=False, highlight=False, style=style, soft_wrap=isinstance(what, str))


def _line_editor() -> Callable[[], str]:
    """Line editing and history for input(), where there is readline. Returns what was typed on the line so far."""
    try:
        import readline
    except ImportError:
        return str
    return readline.get_line_buffer


def _show_answer(session: ChatSession, question: str) -> None:
    """Mutates the session: the answer to the terminal, as it comes."""
    with closing(session.ask(question)) as pieces:
        for piece in pieces:
            sys.stdout.write(piece.translate(_UNSEEN))
            sys.stdout.flush()
    print()
