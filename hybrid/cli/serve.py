"""`hybrid serve`: the OpenAI-compatible server. Flags are spelled as vLLM spells them."""

import json
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from .options import (
    MODEL,
    AllowedLocalMediaPath,
    AllowedMediaDomains,
    Device,
    Dtype,
    EnableLora,
    LoraModules,
    LoraTargetModules,
    MaxCpuLoras,
    MaxLoraRank,
    MaxLoras,
    MaxModelLen,
    Memory,
    Seed,
    Threads,
    Tokenizer,
    complain,
    default_threads,
    lora_options,
    one_model,
)

AS_IN_VLLM = "Flags of vLLM that choose nothing here"


def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help=f"{MODEL} Default: tiny.")] = None,
    model_option: Annotated[str | None, typer.Option("--model", help="The same, as an option.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Names of the model in requests; answers use the first. Default: MODEL.")
    ] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(envvar="HYBRID_API_KEY", help="Requests must bring one of these.")
    ] = None,
    tokenizer: Tokenizer = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests that run at once.")] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens per step.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens per block of the attention pools.")] = 16,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Reuse what was computed of earlier prompts.")] = True,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="On a GPU: decode without CUDA graphs.")
    ] = False,
    async_scheduling: Annotated[
        bool | None, typer.Option(help="Plan and launch a step while one runs. Without it: on a GPU.")
    ] = None,
    scheduling_policy: Annotated[
        str, typer.Option(help="fcfs, priority, lpm, dfs-weight, lof or routing-key.")
    ] = "fcfs",
    max_logprobs: Annotated[int, typer.Option(min=0, help="Most log-probabilities per token.")] = 20,
    max_waiting: Annotated[int | None, typer.Option(min=0, help="Most that wait; more get status 429.")] = None,
    max_body_size: Annotated[int, typer.Option(min=1, help="Bytes of one request's body.")] = 64 * 2**20,
    request_timeout: Annotated[float | None, typer.Option(help="Seconds that one request may take.")] = None,
    allowed_media_domains: AllowedMediaDomains = None,
    allowed_local_media_path: AllowedLocalMediaPath = None,
    limit_mm_per_prompt: Annotated[
        str | None, typer.Option(help='{"image": most images of one prompt}; 0 leaves out what sees them.')
    ] = None,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests have left after SIGTERM or Ctrl-C.")
    ] = 30.0,
    skip_server_warmup: Annotated[
        bool, typer.Option("--skip-server-warmup", help="Listen at once; the first request then waits for kernels.")
    ] = False,
    enable_lora: EnableLora = False,
    lora_modules: LoraModules = None,
    max_loras: MaxLoras = 4,
    max_lora_rank: MaxLoraRank = 64,
    max_cpu_loras: MaxCpuLoras = None,
    lora_target_modules: LoraTargetModules = None,
    memory: Memory = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of a GPU's memory for all, without --memory. Default: what is free.")
    ] = None,
    num_full_blocks: Annotated[
        int | None, typer.Option(min=0, help="Of the full-attention pool. Default: these four follow from --memory.")
    ] = None,
    num_window_blocks: Annotated[int | None, typer.Option(min=0, help="Of the sliding-window pool.")] = None,
    num_state_slots: Annotated[int | None, typer.Option(min=0, help="Of the pool of recurrent states.")] = None,
    encoder_tokens: Annotated[
        int | None, typer.Option(min=0, help="Of the encoder pool; an image of more is refused.")
    ] = None,
    device: Device = None,
    threads: Threads = None,
    dtype: Dtype = "auto",
    seed: Seed = 0,
    enable_auto_tool_choice: Annotated[bool, typer.Option(rich_help_panel=AS_IN_VLLM)] = True,
    tool_call_parser: Annotated[
        str | None, typer.Option(help="hermes or llama3_json: both are read.", rich_help_panel=AS_IN_VLLM)
    ] = None,
    tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "-tp", rich_help_panel=AS_IN_VLLM)] = 1,
    pipeline_parallel_size: Annotated[
        int, typer.Option("--pipeline-parallel-size", "-pp", rich_help_panel=AS_IN_VLLM)
    ] = 1,
    data_parallel_size: Annotated[int, typer.Option("--data-parallel-size", "-dp", rich_help_panel=AS_IN_VLLM)] = 1,
    trust_remote_code: Annotated[bool, typer.Option(rich_help_panel=AS_IN_VLLM)] = False,
    enable_chunked_prefill: Annotated[bool, typer.Option(rich_help_panel=AS_IN_VLLM)] = True,
    quantization: Annotated[str | None, typer.Option("--quantization", "-q", rich_help_panel=AS_IN_VLLM)] = None,
    kv_cache_dtype: Annotated[str, typer.Option(rich_help_panel=AS_IN_VLLM)] = "auto",
    load_format: Annotated[str, typer.Option(rich_help_panel=AS_IN_VLLM)] = "auto",
    enable_tower_connector_lora: Annotated[bool, typer.Option(rich_help_panel=AS_IN_VLLM)] = True,
    disable_log_stats: Annotated[bool, typer.Option(rich_help_panel=AS_IN_VLLM)] = False,
) -> None:
    """Serve a model over OpenAI's HTTP API.

    The first SIGTERM or Ctrl-C lets running requests finish, the second one ends them.
    """
    model = one_model(model, model_option)
    try:
        import fastapi  # noqa: F401
        import httpx  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        complain(f"hybrid serve needs the extra 'serve': pip install 'hybrid-pools[serve]' ({error})")
        raise typer.Exit(2) from None
    from hybrid.engine_args import EngineArgs
    from hybrid.engine_setup import set_up
    from hybrid.frontend.media import MediaPolicy
    from hybrid.server.app import ServerOptions, build_server
    from hybrid.server.limits import RequestLimits
    from hybrid.server.run import DrainingServer
    from hybrid.vllm_arguments import without_vllm
    from hybrid.warm_up import warm_up

    try:
        without_vllm(context.params)
        args = EngineArgs(
            model=model,
            tokenizer=tokenizer,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            memory=memory,
            num_full_blocks=num_full_blocks,
            num_window_blocks=num_window_blocks,
            num_state_slots=num_state_slots,
            encoder_tokens=encoder_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
            dtype=dtype,
            device=device,
            num_threads=threads if threads is not None else default_threads(model),
            seed=seed,
            enable_prefix_caching=enable_prefix_caching,
            enforce_eager=enforce_eager,
            async_scheduling=async_scheduling,
            limit_mm_per_prompt=_json("--limit-mm-per-prompt", limit_mm_per_prompt) if limit_mm_per_prompt else {},
            scheduling_policy=scheduling_policy,  # type: ignore[arg-type]  # checked by it
            **lora_options(enable_lora, lora_modules, max_loras, max_lora_rank, max_cpu_loras, lora_target_modules),
        )
        options = ServerOptions(
            served_model_name=served_model_name or (),
            max_logprobs=max_logprobs,
            limits=RequestLimits(
                api_keys=api_key or (),
                max_body_bytes=max_body_size,
                max_waiting=max_waiting,
                max_num_seqs=args.num_seqs,
                timeout=request_timeout,
            ),
            media=MediaPolicy(allowed_domains=allowed_media_domains or (), allowed_local_path=allowed_local_media_path),
        )
        if both := sorted({*args.lora_modules} & {*(served_model_name or (model,))}):
            raise ValueError(f"lora_modules: {both[0]!r} is the model itself")
        if port:
            _check_address(host, port)  # before minutes of loading
        print(f"loading {model}", file=sys.stderr, flush=True)
        with _log_on_stderr():
            setup = set_up(args)
            if not skip_server_warmup:
                warm_up(setup)
        print(f"models: {', '.join([*(served_model_name or (model,)), *args.lora_modules])}", file=sys.stderr)
    except ValueError as error:
        complain(error)
        raise typer.Exit(2) from None
    DrainingServer(build_server(setup, args, options), host=host, port=port, shutdown_timeout=shutdown_timeout).run()


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Inside, what is logged from INFO on is also said: how memory is divided, and who computes what."""
    logger, handler = logging.getLogger("hybrid"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _json(name: str, value: str) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f"{name} must be JSON, got {value!r}") from None


def _check_address(host: str, port: int) -> None:
    """Raises ValueError where the server could not listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
