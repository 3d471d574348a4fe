"""What /metrics, /v1/pools and explain say about a real engine with a scripted runner, over HTTP."""

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from hybrid.engine import Engine
from hybrid.pools.sizing import POOL_UNITS
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.explain import Explanation
from hybrid.server.errors import add_handlers
from hybrid.server.metrics import COLUMNS, Metrics
from hybrid.server.observe import EffectiveLimits, observe_router
from tests.scripted import ScriptedRunner, prompt, scripted_engine
from tests.server.http import served

LIMITS = EffectiveLimits(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16, block_size=4)
POOL_BYTES = {pool: 1000 + number for number, pool in enumerate(POOL_UNITS)}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def add(engine: Engine, metrics: Metrics, request_id: str) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    engine.add_request(request_id, prompt("a prompt " + request_id), params, max_tokens=5)
    metrics.arrived(request_id)


def scrape(text: str) -> Samples:
    return {
        (
            sample.name,
            frozenset((key, value) for key, value in sample.labels.items() if key != "model_name"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"hybrid:{name}", frozenset(labels.items())]


def columns(samples: Samples, pool: str) -> float:
    return sum(value(samples, "pool_units", pool=pool, column=column) for column in COLUMNS)


def test_the_numbers_add_up_while_requests_wait_run_and_end() -> None:
    engine, clock = scripted_engine(ScriptedRunner()), Clock()
    metrics = Metrics(engine.scheduler, "tiny", clock)

    async def explain(request_id: str) -> Explanation | None:
        return engine.scheduler.explanation(request_id)

    app = FastAPI()
    app.include_router(observe_router(metrics, LIMITS, explain, POOL_BYTES, {}))
    add_handlers(app)
    with served(app) as base, httpx.Client(base_url=base) as client:
        for number in range(6):
            add(engine, metrics, f"r{number}")
        saw_rows = False
        while engine.has_unfinished:
            clock.now += 0.1
            metrics.stepped(engine.step())
            samples = scrape(client.get("/metrics").text)
            pools = client.get("/v1/pools").json()
            assert pools["limits"]["max_num_seqs"] == 4
            for pool in pools["pools"]:
                assert columns(samples, pool["pool"]) == pool["capacity"]
                assert value(samples, "pool_capacity", pool=pool["pool"]) == pool["capacity"]
                assert pool["bytes"] == POOL_BYTES[pool["pool"]]
            running = value(samples, "num_requests_running")
            assert running == value(samples, "pool_units", pool="request row", column="held")
            waiting = [v for (name, _), v in samples.items() if name == "hybrid:num_requests_waiting_for"]
            assert sum(waiting) == value(samples, "num_requests_waiting")
            for number in range(6):
                answer = client.get(f"/v1/requests/r{number}/explain")
                if answer.status_code == 404:
                    error = answer.json()["error"]
                    assert f"'r{number}'" in error["message"] and error["param"] == "request_id"
                    continue
                body = answer.json()
                assert (body["status"] == "running") == (body["holds"]["request row"] == 1)
                assert body["id"] == f"r{number}" and body["id"] in body["reason"]
            saw_rows = saw_rows or running == 4
        assert saw_rows
        clock.now += 0.1
        metrics.stepped([], idle=True)
        samples = scrape(client.get("/metrics").text)
    assert value(samples, "generation_tokens_total") == 30
    assert value(samples, "request_success_total", finished_reason="length") == 6
    assert value(samples, "time_to_first_token_seconds_count") == 6
    assert value(samples, "inter_token_latency_seconds_count") == 24
    assert value(samples, "e2e_request_latency_seconds_count") == 6
    assert value(samples, "request_queue_time_seconds_count") == 6
    assert value(samples, "prompt_tokens_total") == 6 * len("a prompt r0")
    assert sum(v for (name, _), v in samples.items() if name == "hybrid:waiting_seconds_total") > 0
