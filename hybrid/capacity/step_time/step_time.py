"""StepTime: how long an engine takes for one step. `Roofline` derives it, `Calibrated` has measured it."""

from typing import Protocol

from .step_work import StepWork

EXACT = (1.0,)


class StepTime(Protocol):
    """A model of one engine on one machine."""

    def seconds(self, work: StepWork) -> float:
        """From the beginning of one step to that of the next, in a busy engine: planning it, executing it, handing out
        its tokens. Pure."""
        ...

    @property
    def variation(self) -> tuple[float, ...]:
        """Factors, equally likely and 1 in the mean, by which a real step takes longer or shorter than that."""
        ...
