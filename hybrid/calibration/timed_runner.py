"""TimedRunner: a runner that notes when it executed what. The engine does not know the difference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from hybrid.capacity.step_time.step_work import RecentSizes, StepWork
from hybrid.encoders.inputs import EncoderInput
from hybrid.engine import Runner
from hybrid.grammar.backend import Masks
from hybrid.models.image_positions import ImagePositions
from hybrid.runner.launched import RunnerOutput
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Executed:
    """One plan, and when its execution began (not before the one before had ended) and ended, in seconds of
    `perf_counter`."""

    work: StepWork
    begin: float
    end: float


class TimedRunner:
    """Passes everything on. `executed` grows by one entry per plan."""

    def __init__(self, runner: Runner) -> None:
        self.executed: list[Executed] = []
        self._runner = runner
        self._sizes = RecentSizes()

    def add_request(
        self,
        request_id: str,
        params: SamplingParams,
        images: Mapping[str, EncoderInput] | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        image_positions: ImagePositions | None = None,
    ) -> None:
        self._runner.add_request(request_id, params, images, eos_token_ids, seed, image_positions)

    def remove_request(self, request_id: str) -> None:
        self._runner.remove_request(request_id)

    def launch(self, plan: StepPlan, grammar: Masks | None = None) -> Callable[[], RunnerOutput]:
        begin = perf_counter()
        result = self._runner.launch(plan, grammar)

        def timed() -> RunnerOutput:
            output = result()
            last = self.executed[-1].end if self.executed else begin
            self.executed.append(Executed(StepWork.of(plan, self._sizes), max(begin, last), perf_counter()))
            return output

        return timed
