"""`hybrid generate`: prompts -> text, for scripts. Answers on standard output, the rest on standard error."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import (
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
    MaxModelLen,
    MaxTokens,
    Memory,
    Model,
    Seed,
    Temperature,
    Threads,
    Tokenizer,
    close_output,
    complain,
    lora_options,
    lora_request,
    open_llm,
    picture_reader,
    read_anything,
    sampling_params,
)

if TYPE_CHECKING:
    from PIL import Image

    from hybrid.outputs import CompletionOutput, RequestOutput


def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, one per line of a pipe.")] = None,
    model: Model = "tiny",
    image: Images = None,
    allowed_media_domains: AllowedMediaDomains = None,
    allowed_local_media_path: AllowedLocalMediaPath = None,
    chat: Annotated[bool, typer.Option("--chat", help="Each prompt is a user's message, not raw text.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    temperature: Temperature = None,
    top_p: Annotated[float | None, typer.Option(help="Of the most likely tokens those with this probability.")] = None,
    top_k: Annotated[int | None, typer.Option(help="So many of the most likely tokens; 0: all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Tokens at least this times as likely as the likeliest.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an answer; may be given several times.")
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Answers to each prompt.")] = 1,
    max_tokens: MaxTokens = 64,
    max_model_len: MaxModelLen = None,
    tokenizer: Tokenizer = None,
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
    """Continue prompts, all in one batch. Pictures go with every prompt, in the order of its placeholders."""
    read_anything()
    if not prompts:
        if sys.stdin.isatty():
            complain("there is nothing to continue: pass prompts, or pipe in one per line")
            raise typer.Exit(2)
        prompts = [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    read = picture_reader(allowed_media_domains, allowed_local_media_path)
    loras = lora_options(enable_lora, lora_modules, max_loras, max_lora_rank, max_cpu_loras, lora_target_modules)
    llm = open_llm(
        model,
        memory=memory,
        device=device,
        threads=threads,
        dtype=dtype,
        seed=seed,
        max_num_seqs=64,
        lora=loras,
        max_model_len=max_model_len,
        tokenizer=tokenizer,
    )
    params = sampling_params(
        llm, temperature, max_tokens, top_p=top_p, top_k=top_k, min_p=min_p, stop=stop or None, n=n
    )
    adapter = lora_request(llm, lora)
    try:
        pictures = [read(reference) for reference in image or []]
        if chat:
            outputs = llm.chat([_message(prompt, pictures) for prompt in prompts], params, lora_request=adapter)
        else:
            data = {"multi_modal_data": {"image": pictures}} if pictures else {}
            outputs = llm.generate([{"prompt": prompt, **data} for prompt in prompts], params, lora_request=adapter)
    except ValueError as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    try:
        for prompt, output in zip(prompts, outputs, strict=True):
            for answer in output.outputs:
                described = _describe(prompt, output, answer)
                print(json.dumps(described, ensure_ascii=False) if as_json else answer.text)
        sys.stdout.flush()
    except BrokenPipeError:
        close_output()
        raise typer.Exit(1) from None
    except OSError as error:
        close_output()
        complain(f"the answers cannot be written: {error.strerror}")
        raise typer.Exit(1) from None
    failed = [output.error for output in outputs if output.error is not None]
    for reason in failed:
        complain(reason)
    if failed:
        raise typer.Exit(1)


def _message(prompt: str, pictures: list["Image.Image"]) -> list[dict[str, Any]]:
    """A conversation of one question."""
    parts = [*({"type": "image", "image": picture} for picture in pictures), {"type": "text", "text": prompt}]
    return [{"role": "user", "content": parts}]


def _describe(prompt: str, output: "RequestOutput", completion: "CompletionOutput") -> dict[str, Any]:
    return {
        "prompt": prompt,
        **({"index": completion.index} if len(output.outputs) > 1 else {}),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_output_tokens": len(completion.token_ids),
        "num_cached_tokens": output.num_cached_tokens,
        **({"error": output.error} if output.error is not None else {}),
    }
