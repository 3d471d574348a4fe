"""What users write as --vary, and the engines that come of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybrid.capacity.hardware import find_hardware
from hybrid.capacity.question import Question
from hybrid.capacity.simulation.engine_model import EngineModel
from hybrid.capacity.simulation.settings import Setting, engine_model, parse_settings, planned_for
from hybrid.capacity.simulation.simulation import Conditions
from hybrid.capacity.simulation.study import Study, best
from hybrid.capacity.simulation.targets import Targets
from hybrid.capacity.sizing.planning import plan
from hybrid.pools.sizing import pool_bytes
from tests.capacity.questions import GIB, question

from .engines import Linear, poisson, workload

TRAFFIC = workload(poisson(40, 5.0), 900, 100)


def asked(**more: Any) -> Question:
    return question(
        "granite-4.0-h-tiny", memory_bytes=4 * GIB, context=900, output=100, weights_dtype="bfloat16", **more
    )


def engine_with(*texts: str) -> EngineModel:
    (setting,) = parse_settings(texts)
    return engine_model(asked(), setting, lambda question: Linear())


def test_all_combinations() -> None:
    settings = parse_settings(["policy=fcfs,lpm", "max-num-batched-tokens=512, 2048", "prefix_caching=off"])
    assert [str(setting) for setting in settings][:2] == [
        "policy=fcfs max_num_batched_tokens=512 prefix_caching=off",
        "policy=fcfs max_num_batched_tokens=2048 prefix_caching=off",
    ]
    assert settings[-1].values == {
        "scheduling_policy": "lpm", "max_num_batched_tokens": 2048, "enable_prefix_caching": False,
    }  # fmt: skip
    assert [str(setting) for setting in parse_settings([])] == ["as planned"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("speed=1,2", "vary must be such as policy=fcfs,lpm, over .*block_size, .*policy, .*got 'speed=1,2'"),
        ("policy", "vary must be such as"),
        ("policy=best", "vary policy must be one of fcfs, priority, lpm, .*got 'best'"),
        ("composition=", "vary composition must be one of decode-first, prefill-first, got ''"),
        ("max_num_seqs=many", "vary max_num_seqs must be an integer, got 'many'"),
        ("reservation=half", "vary reservation must be a number, got 'half'"),
        ("prefix_caching=maybe", "vary prefix_caching must be on or off, got 'maybe'"),
        ("split=even", "vary split must be one of plan, engine, got 'even'"),
        ("block_size=" + ",".join("1" * 999), "vary gives 999 combinations; at most 64 are compared"),
        ("max_scan=" + ",".join(map(str, range(1, 66))), "vary gives 65 combinations; at most 64 are compared"),
    ],
)
def test_impossible_texts(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_settings([text])
    with pytest.raises(ValueError, match="vary names scheduling_policy twice"):
        parse_settings(["policy=fcfs", "scheduling_policy=lpm"])


def test_the_engine_is_the_planned_one() -> None:
    made, engine = plan(asked()), engine_with()
    assert engine.sizes == made.sizes and engine.sizes.num_rows == made.concurrency
    assert engine.config == made.args.scheduler_config(0)
    assert engine.enable_prefix_caching and engine.vocab_size == asked().model.decoder.vocab_size


def test_settings_reach_scheduler_and_pools() -> None:
    engine = engine_with(
        "policy=lof", "composition=prefill-first", "reservation=0.2", "max_plans_in_flight=2", "block_size=32",
        "max_num_batched_tokens=512", "max_num_seqs=7", "prefix_caching=off", "max_num_encoder_tokens=64",
    )  # fmt: skip
    config, sizes = engine.config, engine.sizes
    assert (config.scheduling_policy, config.composition, config.initial_output_ratio) == ("lof", "prefill-first", 0.2)
    assert (config.max_plans_in_flight, config.max_num_batched_tokens, config.max_num_encoder_tokens) == (2, 512, 64)
    assert (sizes.lookahead, sizes.block_size, sizes.num_rows) == (1, 32, 7)
    assert not engine.enable_prefix_caching


def test_a_pool_that_is_given_takes_its_units_from_full_attention() -> None:
    planned, fewer = engine_with().sizes, engine_with("num_state_slots=5").sizes
    spec = asked().spec()
    assert fewer.num_state_slots == 5 and fewer.num_full_blocks > planned.num_full_blocks
    assert 0 <= 4 * GIB - pool_bytes(fewer, spec).total < spec.full_bytes_per_token * fewer.block_size
    both = engine_with("num_state_slots=5", "num_full_blocks=100").sizes
    assert (both.num_state_slots, both.num_full_blocks) == (5, 100)
    engines_own = engine_with("split=engine").sizes
    assert engines_own.num_state_slots != planned.num_state_slots and engines_own.num_rows == planned.num_rows
    assert pool_bytes(engines_own, spec).total <= 4 * GIB


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("num_state_slots=5000", r"num_state_slots=5000: the pools would take .* bytes, and there are 4,294,967,296"),
        (
            "num_full_blocks=10",
            r"num_full_blocks=10: not even one request of 1000 tokens fits: the full attention",
        ),
        ("max_num_seqs=3000", r"max_num_seqs=3000: max_num_seqs 3000 is more than max_num_batched_tokens 2048"),
        ("max_num_seqs=0", r"max_num_seqs=0: max_num_seqs must be at least 1, got 0"),
        ("gpu=abacus", r"gpu=abacus: gpu 'abacus' is not one of a100-40"),
        ("reservation=2", r"reservation=2: initial_output_ratio 2\.0 is not between 0 and 1"),
    ],
)
def test_impossible_engines_say_which_setting(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        engine_with(text)


def test_rows_may_be_more_than_planned() -> None:
    planned = engine_with().sizes
    more = engine_with(f"max_num_seqs={2 * planned.num_rows}").sizes
    assert more == replace(planned, num_rows=2 * planned.num_rows)


def test_requests_of_one_length_are_planned_as_such() -> None:
    assert planned_for(asked(), workload(poisson(40, 5.0), 900, 100), None) == asked()


def test_requests_of_many_lengths_are_planned_as_a_mix() -> None:
    """More of them at once than of the longest; the longest still fits, with what it permits."""
    traffic = workload(poisson(40, 5.0), [3000] + 39 * [846], 100)
    mixed = planned_for(asked(), traffic, 200)
    assert (mixed.context, mixed.output, mixed.total_tokens) == (3000, 200, 3200)
    made = engine_model(mixed, Setting(), lambda question: Linear()).sizes
    assert made.max_model_len == 3200
    assert made.num_rows > plan(replace(mixed, traffic=None)).concurrency


def study(**more: Any) -> Study:
    given: dict[str, Any] = {"conditions": Conditions(targets=Targets(ttft=1.0)), "rates": (5.0, 5.0)} | more
    return Study(question=asked(), workload=TRAFFIC, step_time=lambda question: Linear(0.02), **given)


def test_the_best_setting() -> None:
    """One row serves one request of 100 steps of 0.02 s after the other: nobody can meet a second."""
    settings = parse_settings(["max_num_seqs=1,30", "num_state_slots=9999,25"])
    cases = [study().case(setting) for setting in settings]
    assert best(cases) == 3
    assert [case.why_not != "" for case in cases] == [True, False, True, False]
    assert cases[3].shown is not None and cases[3].shown.attainment == 1.0
    assert cases[1].shown is not None and (cases[1].shown.attainment or 0.0) < 0.2
    assert best(cases[:1]) is None


def test_impossible_studies() -> None:
    with pytest.raises(ValueError, match="a warm-up of 60 s leaves nothing of a duration of 60 s"):
        study(conditions=Conditions(duration=60.0, warmup=60.0))
    with pytest.raises(ValueError, match="a range of rates is searched for what meets targets: give --slo"):
        study(conditions=Conditions(), rates=(1.0, 5.0))


def test_a_workload_as_it_is() -> None:
    """Without rates nothing is stretched, also where all requests come at once."""
    at_once = replace(study(rates=None), workload=workload(np.zeros(10), 100, 10))
    shown = at_once.case(Setting()).shown
    assert shown is not None and shown.completed == 10 and shown.rate == float("inf")


def test_a_gpu_has_two_plans_in_flight() -> None:
    (setting,) = parse_settings([])
    on_gpu = engine_model(asked(hardware=find_hardware("h100")), setting, lambda question: Linear())
    assert (on_gpu.config.max_plans_in_flight, on_gpu.sizes.lookahead) == (2, 1)
    assert (engine_with().config.max_plans_in_flight, engine_with().sizes.lookahead) == (1, 0)
