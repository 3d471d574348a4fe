"""What a request must be like to enter the scheduler at all. Pure; the first thing wrong is the ValueError."""

from hybrid.pools.sizing import Need, PoolSizes

from .config import SchedulerConfig
from .request import NewRequest


def check_request(new: NewRequest, sizes: PoolSizes, config: SchedulerConfig) -> Need:
    """The request's life need. Raises ValueError with the offending value."""
    name = f"request {new.request_id!r}"
    length = len(new.prompt_token_ids)
    if length == 0:
        raise ValueError(f"{name}: the prompt is empty")
    if length >= sizes.max_model_len:
        raise ValueError(
            f"{name}: the prompt has {length} tokens, max_model_len {sizes.max_model_len} leaves no room for output"
        )
    if new.max_tokens < 1:
        raise ValueError(f"{name}: max_tokens {new.max_tokens} is less than 1")
    if not 0 <= new.min_tokens <= new.max_tokens:
        raise ValueError(f"{name}: min_tokens {new.min_tokens} is not between 0 and max_tokens {new.max_tokens}")
    if int(new.prompt_token_ids.min()) < 0:
        raise ValueError(f"{name}: token id {int(new.prompt_token_ids.min())} is negative")
    for stop in new.stop_token_ids:
        if stop < 0:
            raise ValueError(f"{name}: stop token id {stop} is negative")
    end = 0
    for image in new.images:
        if image.num_tokens < 1 or image.offset < end or image.offset + image.num_tokens > length:
            raise ValueError(
                f"{name}: image at {image.offset} with {image.num_tokens} tokens overlaps another or lies outside the "
                f"prompt of {length}"
            )
        if image.num_tokens > config.encoder_budget:
            raise ValueError(
                f"{name}: an image has {image.num_tokens} tokens, a step encodes at most {config.encoder_budget}"
            )
        if config.disable_chunked_mm_input and image.num_tokens > config.chunk_limit:
            raise ValueError(
                f"{name}: an unsplit image of {image.num_tokens} tokens exceeds a step of {config.chunk_limit}"
            )
        end = image.offset + image.num_tokens
    return Need(
        max_total_tokens=min(length + new.max_tokens, sizes.max_model_len),
        image_tokens=tuple(image.num_tokens for image in new.images),
        lora_rank=new.adapter.rank if new.adapter is not None else 0,
        unsplit_images=config.disable_chunked_mm_input,
    )
