"""RunnerSizes: how large the runner's tensors and tables are. Counts only, no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """Capacities as the pools have them: ids of blocks, slots and rows run from 0 to their number - 1.

    `max_model_len` counts prompt and output tokens of one request; `lookahead` the tokens that plans in flight or
    drafts may write beyond it.
    """

    num_full_blocks: int
    num_window_blocks: int
    num_state_slots: int
    num_rows: int
    encoder_tokens: int
    block_size: int
    max_model_len: int
    lookahead: int = 0

    def __post_init__(self) -> None:
        for name in ("num_rows", "block_size", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        for name in ("num_full_blocks", "num_window_blocks", "num_state_slots", "encoder_tokens", "lookahead"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")

    @property
    def table_width(self) -> int:
        """Entries of one row's block table."""
        return -(-(self.max_model_len + self.lookahead) // self.block_size) + 1
