"""A plan as a JSON document: integer bytes, and formulas as strings."""

from dataclasses import asdict
from typing import Any

from .planning import Plan


def document(made: Plan) -> dict[str, Any]:
    """What `hybrid plan --json` prints."""
    question, spec, sizes = made.question, made.spec, made.sizes
    hardware = question.hardware
    block, embedding = sizes.block_size, spec.encoder.bytes_per_token if spec.encoder is not None else 0
    return made.limits_document() | {
        "model": question.name,
        "request": {
            "context": question.context,
            "output": question.output,
            "images": question.images,
            "image_size": question.image_size,
            "image_tokens": question.image_tokens,
            "shared_prefix": question.shared_prefix,
            "total_tokens": question.total_tokens,
        },
        "traffic": None if question.traffic is None else question.traffic.document(),
        "expected": None if made.expected is None else asdict(made.expected),
        "hardware": None
        if hardware is None
        else {
            "name": hardware.name,
            "memory_bytes": hardware.memory_bytes,
            "bandwidth": hardware.bandwidth,
            "flops": dict(hardware.flops),
            "source": hardware.source,
        },
        "tp": question.tp,
        "dtypes": {"weights": question.dtype, "kv": question.kept_dtype, "state": question.state_dtype},
        "parameters": made.parameters,
        "weights_bytes": made.weights_bytes,
        "activations_bytes_estimate": made.activations_bytes,
        "working_bytes": None if made.working is None else asdict(made.working) | {"total": made.working.total},
        "memory_bytes": made.memory_bytes,
        "admission_peak_bytes": made.request_bytes.total + made.chunk_bytes,
        "shared_prefix_bytes": made.shared_bytes,
        "adapter_bytes": made.adapter_bytes,
        "image_bytes": made.image_bytes,
        "formulas": {
            "full": f"(blocks + 1) * {block} * {spec.full_bytes_per_token}",
            "window": f"(blocks + 1) * {block} * {spec.window_bytes_per_token}",
            "state": f"slots * {spec.state_bytes_per_slot}",
            "encoder": f"tokens * {embedding}",
            "lora": f"rank_units * {made.pools.lora // sizes.lora_units if sizes.lora_units else 0}",
        },
        "marginal_requests_per_gib": dict(made.marginal),
        "what_if": list(question.what_if),
        "flags": made.flags(),
    }
