"""What models say under JSON schemas, sampled at temperature 1, is valid: always, says `jsonschema`."""

import json
from pathlib import Path

import jsonschema
import pytest

from hybrid import LLM, SamplingParams, StructuredOutputsParams
from hybrid.checkpoints import find_checkpoint

from .models import SMOLLM2_TOKENS, write_random_llama
from .schemas import SCHEMAS

RUNS = {"tiny": 4, "random": 3}  # of each schema
MAX_TOKENS = 900
UNBOUNDED = ("additional properties of a type", "all of")  # names of any length, which only a bias brings to an end


@pytest.fixture(scope="module", params=list(RUNS))
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, LLM]:
    """The bundled model, and a random one with more tokens than the tokenizer of SmolLM2 that it uses."""
    name: str = request.param
    model: str | Path = "tiny"
    if name == "random":
        model = write_random_llama(tmp_path_factory.mktemp("random"), SMOLLM2_TOKENS + 77)
    tokenizer = find_checkpoint("smollm2") if name == "random" else None
    return name, LLM(model, tokenizer=tokenizer, memory="128MiB", max_num_seqs=32, max_model_len=1024, seed=3)


def test_there_are_enough_of_them() -> None:
    assert len(SCHEMAS) >= 30
    assert len(SCHEMAS) * sum(RUNS.values()) >= 300


def test_every_output_is_valid(named: tuple[str, LLM]) -> None:
    name, llm = named
    [quote] = llm.get_tokenizer().encode('"', add_special_tokens=False).token_ids.tolist()
    runs = [schema_name for schema_name in SCHEMAS for _ in range(RUNS[name])]
    params = [
        SamplingParams(
            max_tokens=MAX_TOKENS,
            logit_bias={quote: 20.0} if run in UNBOUNDED else None,
            structured_outputs=StructuredOutputsParams(json=SCHEMAS[run]),
        )
        for run in runs
    ]
    outputs = llm.generate(["Some JSON:"] * len(params), params, use_tqdm=False)
    seen = set()
    for run, output in zip(runs, outputs, strict=True):
        [completion] = output.outputs
        assert (completion.finish_reason, output.error) == ("stop", None), (run, completion.text)
        validator = jsonschema.Draft202012Validator(SCHEMAS[run], format_checker=jsonschema.FormatChecker())
        validator.validate(json.loads(completion.text))
        seen.add(completion.text)
    assert len(seen) > len(SCHEMAS)  # it is chance that speaks
