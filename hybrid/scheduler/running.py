"""Running: which requests hold rows, in admission order, decoding apart from prefilling. Knows rows, not pools."""

import numpy as np

from hybrid.pools.ledger import EMPTY, Ints

from .tracked import Tracked


class Running:
    """`decoding`: rows with one known token left to compute, as one array. `prefilling`: rows with known tokens ahead.
    `draining`: finished for the user, but a step in flight still computes for them."""

    def __init__(self, num_rows: int) -> None:
        self.by_row: list[Tracked | None] = [None] * num_rows
        self.decoding: Ints = EMPTY
        self.prefilling: list[Tracked] = []
        self.draining: list[Tracked] = []
        self._next_rank = 0

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    def requests(self) -> list[Tracked]:
        """All that run, draining ones not included."""
        decoding = [self.by_row[row] for row in self.decoding.tolist()]
        return self.prefilling + [request for request in decoding if request is not None]

    def rows(self) -> Ints:
        """Rows of all that run, draining ones not included."""
        prefilling = np.array([request.row for request in self.prefilling], dtype=np.int64)
        return np.concatenate([self.decoding, prefilling]) if len(prefilling) else self.decoding

    def admit(self, request: Tracked, row: int) -> None:
        """Mutates."""
        request.row = row
        request.rank = self._next_rank
        self._next_rank += 1
        self.by_row[row] = request
        self.prefilling.append(request)

    def start_decoding(self, requests: list[Tracked]) -> None:
        """Mutates: these have been scheduled up to their last known token."""
        if requests:
            self.prefilling = [request for request in self.prefilling if request not in requests]
            rows = np.array([request.row for request in requests], dtype=np.int64)
            self.decoding = np.concatenate([self.decoding, rows])

    def stop(self, request: Tracked) -> None:
        """Mutates: it is not scheduled any more, but keeps its row."""
        if request in self.prefilling:
            self.prefilling.remove(request)
        else:
            self.decoding = self.decoding[self.decoding != request.row]

    def leave(self, request: Tracked) -> None:
        """Mutates: the row is given up."""
        assert request.row is not None
        self.by_row[request.row] = None
        if request in self.draining:
            self.draining.remove(request)
        else:
            self.stop(request)
        request.row = None
