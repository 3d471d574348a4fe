"""wip"""
import time
from collections import Counter
import numpy as np
import pytest
import torch
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights
from hybrid.sampling_params import SamplingParams
from tests.pretended_cuda import pretended
from tests.runner.plans import PlanDriver, random_reference, runner_sizes, small_config

PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=3),
    "reported": SamplingParams(temperature=0.0, logprobs=3),
    "penalised": SamplingParams(temperature=0.0, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    "biased": SamplingParams(temperature=0.0, logit_bias={5: 3.0}, min_tokens=4),
}

def drive(model, device, graphs, watch=None):
    driver = PlanDriver(model, runner_sizes(num_rows=8), device=device, decode_graphs=graphs, stale=False)
    rng = np.random.default_rng(1)
    outs = []
    def step(*args, **kw):
        n = len(watch.waits) if watch else 0
        t=time.time()
        plan = driver.plan(*args, **kw)
        output = driver.runner.execute(plan)
        outs.append((driver.commit(plan, output), output.logprobs))
        if watch: print(round(time.time()-t,2), Counter(watch.waits[n:]))
    for i, (name, params) in enumerate(PARAMS.items()):
        driver.add(name, rng.integers(3, 61, 3 + 5 * i).tolist(), params, seed=i)
    slot = driver.free_slot()
    step({"greedy": 3, "biased": 12}, [("biased", 7, slot)])
    step({"greedy": 1, "drawn": 8, "reported": 13, "penalised": 18, "biased": 11})
    step(dict.fromkeys(PARAMS, 1))
    prompt = driver.requests["biased"].token_ids[:7] + [9, 8, 7]
    driver.add("hit", prompt)
    driver.resume("hit", "biased", 7, slot)
    step({"hit": 3, "greedy": 1})
    step({"hit": 1, "greedy": 1}, drafts={"greedy": [4, 5]})
    step(dict.fromkeys([*PARAMS, "hit"], 1))
    return outs

@pytest.mark.parametrize("ops", ["torch", "triton"])
def test_it(ops, monkeypatch):
    reference = random_reference(small_config("mFs"))
    def model(device): return Decoder(read_model(reference.config.to_dict()), Weights(reference.state_dict(), torch.float32, torch.device(device)))
    want = drive(model("cpu"), "cpu", False)
    monkeypatch.setenv("HYBRID_OPS", ops)
    with pretended(monkeypatch) as device:
        t=time.time(); m = model("cuda"); print("load", time.time()-t)
        got = drive(m, "cuda", None, device)
    print(Counter(device.launched))
    for (w, wl), (g, gl) in zip(want, got):
        assert w == g
