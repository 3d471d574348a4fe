"""The scheduler's own cost: schedule + commit of one decode step, without a model.

    python -m benchmarks.scheduler_overhead [--steps N]

Full + window + state pools; every request decodes one token a step. The "runner" hands back prepared tokens, so what is
timed is schedule() and commit() alone. Median and 99th percentile over the steps, with 10 and with 10,000 more waiting.
"""

import argparse
import gc
from time import perf_counter_ns

import numpy as np
from tqdm import tqdm

from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan, StepResult
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler

PROMPT_TOKENS = 128


def build(num_requests: int, num_waiting: int, steps: int) -> Scheduler:
    """A scheduler with `num_requests` decoding and `num_waiting` behind them for whom no row is left."""
    length = PROMPT_TOKENS + steps + 64
    sizes = PoolSizes(
        num_rows=num_requests,
        num_full_blocks=num_requests * (length // 16 + 2) * 2,
        num_window_blocks=num_requests * 24,
        num_state_slots=num_requests * 3,
        encoder_tokens=0,
        lora_units=0,
        block_size=16,
        sliding_window=128,
        max_model_len=length,
    )
    config = SchedulerConfig(max_num_batched_tokens=8192)
    scheduler = Scheduler(config, sizes, Kinds(full=True, window=True, state=True))
    random = np.random.default_rng(0)
    for index in range(num_requests + num_waiting):
        prompt = random.integers(2, 30_000, PROMPT_TOKENS, dtype=np.int32)
        scheduler.add(NewRequest(f"r{index}", prompt, max_tokens=steps + 63, stop_token_ids=(1,)))
    while True:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.commit(answer(plan))
        if len(plan.rows) == num_requests and (plan.num_scheduled_tokens == 1).all():
            return scheduler


def answer(plan: StepPlan) -> StepResult:
    return StepResult.one_each(plan.step_id, np.full(int(plan.samples.sum()), 7, dtype=np.int32))


def measure(scheduler: Scheduler, steps: int) -> np.ndarray:
    """Microseconds of each schedule + commit."""
    times = np.zeros(steps)
    gc.collect()
    for step in range(steps):
        start = perf_counter_ns()
        plan = scheduler.schedule()
        planned = perf_counter_ns()
        assert plan is not None
        result = answer(plan)
        resumed = perf_counter_ns()
        scheduler.commit(result)
        times[step] = (planned - start + perf_counter_ns() - resumed) / 1000
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    cases = [(n, waiting) for n in (16, 64, 256, 512, 1024) for waiting in (10, 10_000)]
    rows = []
    for num_requests, waiting in tqdm(cases, desc="scheduler", unit="case"):
        scheduler = build(num_requests, waiting, steps)
        measure(scheduler, min(50, steps // 4))
        rows.append((num_requests, waiting, measure(scheduler, steps - min(50, steps // 4))))
    print(f"{'decoding':>9} {'waiting':>8} {'median µs':>10} {'p99 µs':>10}")
    for num_requests, waiting, times in rows:
        print(f"{num_requests:>9} {waiting:>8} {np.median(times):>10.1f} {np.percentile(times, 99):>10.1f}")
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        ratio = np.median(second[2]) / np.median(first[2])
        print(f"{first[0]} decoding: 10,000 waiting cost {ratio:.2f} times what 10 waiting cost")


if __name__ == "__main__":
    main()
