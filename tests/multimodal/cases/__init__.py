"""Tiny vision-language checkpoints, one file per model_type, each with `CASES`: `Case` by name."""
