"""LatestTokens: the token that each row sampled last, on the device, for steps that run before the host knows it."""

import torch

from hybrid.models.ops.transfer import upload
from hybrid.scheduler.plan import Ints

from .row_mirror import UNKNOWN


class LatestTokens:
    """Of all request rows, and of one behind them that is nobody's. Allocated once."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._tokens = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)

    def put(self, rows: Ints, tokens: torch.Tensor) -> None:
        """Mutates: the rows sampled these. One that is no token is taken for 0: its step comes to nothing."""
        self._tokens.index_copy_(0, upload(rows, self._tokens.device), tokens.clamp(min=0))

    def fill(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """token_ids [n] of rows [n] with what is UNKNOWN filled in. Pure."""
        return torch.where(token_ids == UNKNOWN, self._tokens[rows], token_ids)
