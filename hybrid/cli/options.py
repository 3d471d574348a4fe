"""Options that several commands share, and how a command opens a model. Imports torch only when one is opened."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from PIL import Image

    from hybrid.llm import LLM
    from hybrid.lora_request import LoRARequest
    from hybrid.sampling_params import SamplingParams

MODEL = "A folder, a GGUF file, tiny, smollm2, or an id of the model hub."
Model = Annotated[str, typer.Option(help=MODEL)]
Memory = Annotated[
    str | None, typer.Option(help="Of all pools together, such as 512MiB. Default: what the device offers.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... Default: cuda where there is one.")]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads. Default: 1 for a small checkpoint, else what torch chooses.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Tokenizer = Annotated[str | None, typer.Option(help="A folder or GGUF file with another tokenizer.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")]
Temperature = Annotated[float | None, typer.Option(help="0 takes the most likely token. Default: the checkpoint's.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of one answer.")]
Seed = Annotated[int, typer.Option(help="Makes draws repeatable.")]
EnableLora = Annotated[bool, typer.Option(help="Requests may use LoRA adapters. On with --lora-modules.")]
LoraModules = Annotated[
    list[str] | None,
    typer.Option(help='NAME=PATH of a PEFT folder, or {"name": ..., "path": ...}; may be given several times.'),
]
MaxLoras = Annotated[int, typer.Option(help="Most adapters of the highest rank on the device at once.")]
MaxLoraRank = Annotated[int, typer.Option(help="Adapters of a higher rank are refused.")]
MaxCpuLoras = Annotated[int | None, typer.Option(help="Most unused adapters kept in host memory. Default: all.")]
LoraTargetModules = Annotated[
    list[str] | None, typer.Option(help="Ends of names of modules that adapters may change. Default: all that can be.")
]
Lora = Annotated[str | None, typer.Option(help="The adapter that answers. Default: the first of --lora-modules.")]
Images = Annotated[list[str] | None, typer.Option("--image", help="A path or URL; may be given several times.")]
AllowedMediaDomains = Annotated[
    list[str] | None, typer.Option(help="Hosts from which pictures may be fetched. Default: none.")
]
AllowedLocalMediaPath = Annotated[
    str | None, typer.Option(help="The folder below which file: URLs may be read. Default: none.")
]


# Bytes of weights below which a step is so short that threads mostly wait for each other: on two busy cores the bundled
# model gave 622 tokens/s with one thread and 47 with two.
SMALL_CHECKPOINT = 50_000_000


def one_model(argument: str | None, option: str | None) -> str:
    """The model that a command got either way, or the bundled one; or one sentence and exit code 2."""
    if argument is not None and option is not None:
        complain(f"the model is named twice: {argument!r} and --model {option!r}")
        raise typer.Exit(2)
    return argument or option or "tiny"


def complain(message: object) -> None:
    """One line on standard error."""
    print(message, file=sys.stderr, flush=True)


def read_anything() -> None:
    """Mutates the standard streams: bytes that are no text, and text that the terminal cannot show, become marks. A
    standard input that is closed is an empty one."""
    if sys.stdin is None:
        sys.stdin = StringIO()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def close_output() -> None:
    """Mutates standard output: whoever read it has gone, and what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_llm(
    model: str,
    *,
    memory: str | None,
    device: str | None,
    threads: int | None,
    dtype: str,
    seed: int,
    max_num_seqs: int,
    lora: dict[str, Any] | None = None,
    **more: Any,
) -> "LLM":
    """The model, or one sentence on standard error and exit code 2. lora: from `lora_options`; more: for LLM."""
    console = Console(stderr=True)
    with console.status(f"loading {model}") if console.is_terminal else nullcontext():
        from hybrid.llm import LLM

        try:
            return LLM(
                model,
                memory=memory,
                device=device,
                num_threads=threads if threads is not None else default_threads(model),
                dtype=dtype,
                seed=seed,
                max_num_seqs=max_num_seqs,
                **(lora or {}),
                **more,
            )
        except ValueError as error:
            message = str(error)
    complain(message)
    raise typer.Exit(2)


def picture_reader(domains: list[str] | None, local_path: str | None) -> Callable[[str], "Image.Image"]:
    """Reads a picture by its path or URL and raises ValueError; or one sentence and exit code 2."""
    from hybrid.frontend.media import MediaPolicy, read_picture

    try:
        policy = MediaPolicy(allowed_domains=domains or (), allowed_local_path=local_path)
    except ValueError as error:
        complain(error)
        raise typer.Exit(2) from None
    return partial(read_picture, policy=policy)


def lora_options(
    enable_lora: bool,
    lora_modules: list[str] | None,
    max_loras: int,
    max_lora_rank: int,
    max_cpu_loras: int | None,
    lora_target_modules: list[str] | None,
) -> dict[str, Any]:
    """Fields of EngineArgs; or one sentence and exit code 2."""
    modules: dict[str, str] = {}
    for entry in lora_modules or []:
        name, path = _lora_module(entry)
        if not name or not path or name in modules:
            complain(f"--lora-modules takes NAME=PATH with every name once, got {entry!r}")
            raise typer.Exit(2)
        modules[name] = path
    return {
        "enable_lora": enable_lora,
        "lora_modules": modules,
        "max_loras": max_loras,
        "max_lora_rank": max_lora_rank,
        "max_cpu_loras": max_cpu_loras,
        "lora_target_modules": lora_target_modules or None,
    }


def _lora_module(entry: str) -> tuple[str, str]:
    """Name and path, either empty where there is none. As JSON it may also have base_model_name, of no effect."""
    if not entry.startswith("{"):
        name, _, path = entry.partition("=")
        return name, path
    try:
        fields = json.loads(entry)
    except ValueError:
        return "", ""
    name, path = fields.get("name"), fields.get("path")
    return (name, path) if isinstance(name, str) and isinstance(path, str) else ("", "")


def lora_request(llm: "LLM", name: str | None) -> "LoRARequest | None":
    """The adapter of this name, or the first there is, or none at all; or one sentence and exit code 2."""
    from hybrid.lora_request import LoRARequest

    names = llm.list_loras()
    if name is not None and name not in names:
        there = ", ".join(names) or "there are none; add --lora-modules NAME=PATH"
        complain(f"--lora {name!r} is none of the adapters of --lora-modules: {there}")
        raise typer.Exit(2)
    chosen = name if name is not None else next(iter(names), None)
    return None if chosen is None else LoRARequest(chosen)


def default_threads(model: str) -> int | None:
    """1 for a small checkpoint, None otherwise. Raises ValueError when there is no such checkpoint."""
    from hybrid.checkpoints import find_checkpoint

    path = find_checkpoint(model)
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.glob("*.safetensors")))
    return 1 if size < SMALL_CHECKPOINT else None


def sampling_params(llm: "LLM", temperature: float | None, max_tokens: int, **more: Any) -> "SamplingParams":
    """The checkpoint's recommendations, with what the user chose, None: nothing; or one sentence and exit code 2."""
    from dataclasses import replace

    try:
        params = llm.get_default_sampling_params(max_tokens=max_tokens)
        chosen = {"temperature": temperature, **more}
        return replace(params, **{name: value for name, value in chosen.items() if value is not None})
    except ValueError as error:
        complain(error)
        raise typer.Exit(2) from None
