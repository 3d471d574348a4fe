"""The Python surface on the bundled checkpoint. What the model says is not judged, only that it is always the same."""

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

import hybrid.llm
from hybrid import LLM, RequestOutput, SamplingParams
from hybrid.checkpoints import find_checkpoint
from hybrid.engine_args import EngineArgs
from hybrid.memory_size import parse_memory

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
HOT = 20.0  # a temperature at which two draws differ, however sure the model is of itself


def picture(colour: str = "red", side: int = 96) -> Image.Image:
    image = Image.new("RGB", (side, side), "white")
    ImageDraw.Draw(image).ellipse((side // 4, side // 4, side // 2, side // 2), fill=colour)
    return image


def chats() -> list[list[dict[str, Any]]]:
    """Eight conversations of different lengths, some with pictures, some sharing their beginning."""
    system = {"role": "system", "content": "Answer questions about pictures. " * 3}
    conversations: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "Who are you?"}],
        [system, {"role": "user", "content": "Hello"}],
        [system, {"role": "user", "content": "What can you do? " * 20}],
    ]
    for colour in ("red", "blue"):
        for question in ("What color is the circle?", "How many shapes are there?"):
            content = [{"type": "image", "image": picture(colour)}, {"type": "text", "text": question}]
            conversations.append([system, {"role": "user", "content": content}])
    two = [{"type": "image", "image": picture()}, {"type": "image", "image": picture("green")}]
    last = {"role": "user", "content": "What color is the last one?"}
    conversations.append([{"role": "user", "content": two}, {"role": "assistant", "content": "two"}, last])
    return conversations


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


def assert_idle(llm: LLM) -> None:
    llm.engine.scheduler.check()
    assert not llm.engine.is_busy
    for pool, ledger in llm.stats().ledgers.items():
        assert (ledger.reserved, ledger.held, ledger.pinned, ledger.pending) == (0, 0, 0, 0), pool


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A model so small gains nothing from more threads, and on a busy machine they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shared() -> LLM:
    return LLM("tiny", memory="64MiB", max_num_seqs=8, max_num_batched_tokens=128, seed=1)


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """Idle before and after every test."""
    shared.reset_prefix_cache()
    yield shared
    assert_idle(shared)


# --- the same answer, whatever the way ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(shared: LLM) -> list[tuple[int, ...]]:
    """Every conversation alone, without anything cached."""
    alone = []
    for chat in chats():
        shared.reset_prefix_cache()
        alone += tokens(shared.chat(chat, GREEDY, use_tqdm=False))
    return alone


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"async_scheduling": True},
        {"max_plans_in_flight": 3, "force_retraction_every": 5},
        {"enable_prefix_caching": False},
        {"force_retraction_every": 3},
        {"max_num_batched_tokens": 16, "max_num_seqs": 3, "max_num_encoder_tokens": 16},
        {"composition": "prefill-first", "block_size": 4, "long_prefill_token_threshold": 7},
        {"num_full_blocks": 24, "scheduling_policy": "lpm"},
        {"encoder_tokens": 16, "disable_chunked_mm_input": True, "scheduling_policy": "lof"},
    ],
    ids=lambda arguments: ",".join(f"{k}={v}" for k, v in arguments.items()) or "default",
)
def test_answers_do_not_depend_on_batching_or_memory(
    expected: list[tuple[int, ...]], arguments: dict[str, Any]
) -> None:
    llm = LLM("tiny", **{"memory": "64MiB", "max_num_seqs": 8, "max_num_batched_tokens": 64, **arguments})
    for _ in range(2):  # the second time much of it is cached
        assert tokens(llm.chat(chats(), GREEDY, use_tqdm=False)) == expected
        assert_idle(llm)
    if "force_retraction_every" in arguments:
        assert llm.stats().retractions > 0
    if arguments.get("enable_prefix_caching", True):
        assert llm.stats().hit_tokens > 0
    else:
        assert llm.stats().hit_tokens == 0


def test_a_stream_ends_with_what_generate_returns(llm: LLM) -> None:
    prompt = "<|im_start|>user\nWhat can you do?<|im_end|>\n<|im_start|>assistant\n"
    whole = llm.generate(prompt, GREEDY)[0]
    parts = list(llm.stream(prompt, GREEDY))
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
    texts = [part.outputs[0].text for part in parts]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert parts[-1].outputs == whole.outputs
    assert len(parts) == len(whole.outputs[0].token_ids)


def test_two_streams_and_a_batch_at_once(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    first, second = llm.stream_chat(chats()[0], GREEDY), llm.stream_chat(chats()[1], GREEDY)
    ends = [next(first), next(second)]
    assert tokens(llm.chat(chats(), GREEDY)) == expected
    ends = [[end, *stream][-1] for end, stream in zip(ends, (first, second))]
    assert tokens(ends) == expected[:2]


def test_a_stream_that_is_closed_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("Hello", SamplingParams(max_tokens=500, ignore_eos=True))
    next(stream)
    assert llm.stats().num_running == 1
    stream.close()
    assert_idle(llm)


# --- outputs -----------------------------------------------------------------------------------------------------


def test_outputs_keep_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"prompt {'x' * i}" for i in range(20)]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=1 + i % 5, ignore_eos=True) for i in range(20)])
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1 + i % 5 for i in range(20)]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert len({output.request_id for output in outputs}) == 20


def test_the_text_is_that_of_the_tokens(llm: LLM) -> None:
    output = llm.generate("Hello", SamplingParams(max_tokens=60, temperature=1.5, seed=3, ignore_eos=True))[0]
    decoded = llm.get_tokenizer().decode(output.outputs[0].token_ids, skip_special_tokens=True)
    assert decoded.startswith(output.outputs[0].text)
    assert len(decoded) - len(output.outputs[0].text) <= 3  # bytes of an unfinished character


def test_the_ways_to_pass_prompts(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hello").token_ids.tolist()
    texts: list[Any] = ["Hello", ["Hello"], {"prompt": "Hello"}, ids, [ids], np.array(ids), {"prompt_token_ids": ids}]
    assert len({tokens(llm.generate(prompt, GREEDY))[0] for prompt in texts}) == 1
    assert llm.generate([], GREEDY) == [] and llm.chat([[], []][:0] or [chats()[0]], GREEDY) != []


def test_several_sequences_share_the_prompt(llm: LLM) -> None:
    prompt = "a prompt that is long enough to be worth sharing " * 3
    params = SamplingParams(n=4, temperature=HOT, seed=7, max_tokens=12, ignore_eos=True)
    output = llm.generate(prompt, params)[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({completion.token_ids for completion in output.outputs}) == 4
    hits = llm.stats().hit_tokens
    assert hits >= 3 * (len(output.prompt_token_ids) - 1)
    assert llm.generate(prompt, params)[0].outputs == output.outputs
    one = llm.generate(prompt, SamplingParams(temperature=HOT, seed=7, max_tokens=12, ignore_eos=True))[0]
    assert one.outputs[0].token_ids == output.outputs[0].token_ids


def test_a_seed_means_the_same_in_any_batch_and_none_means_something_new(llm: LLM) -> None:
    seeded = SamplingParams(temperature=HOT, seed=11, max_tokens=10, ignore_eos=True)
    free = SamplingParams(temperature=HOT, max_tokens=10, ignore_eos=True)
    alone = tokens(llm.generate("Hello", seeded))[0]
    batch = tokens(llm.generate(["Hello"] * 4, [free, seeded, free, free]))
    assert batch[1] == alone
    assert len({batch[0], batch[2], batch[3]}) == 3


def test_the_engines_seed_decides_where_requests_have_none() -> None:
    params = SamplingParams(temperature=HOT, max_tokens=10, ignore_eos=True)
    runs = [
        tokens(LLM("tiny", memory="8MiB", max_num_seqs=2, seed=seed).generate("Hello", params)) for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_logprobs(llm: LLM) -> None:
    [output] = llm.generate("Hello", SamplingParams(temperature=0.0, max_tokens=5, logprobs=3, ignore_eos=True))
    [completion] = output.outputs
    assert completion.logprobs is not None and len(completion.logprobs) == 5
    for token_id, entry in zip(completion.token_ids, completion.logprobs):
        assert entry[token_id].rank == 1
        assert sorted(e.rank for e in entry.values() if e.rank) == [1, 2, 3]
        assert entry[token_id].logprob == max(e.logprob for e in entry.values())
    chosen = [entry[token_id].logprob for token_id, entry in zip(completion.token_ids, completion.logprobs)]
    assert completion.cumulative_logprob == pytest.approx(sum(chosen))
    [bare] = llm.generate("Hello", SamplingParams(temperature=0.0, max_tokens=5, logprobs=0, ignore_eos=True))
    assert bare.outputs[0].logprobs is not None and all(len(entry) == 1 for entry in bare.outputs[0].logprobs)


def test_stop_strings_and_min_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    text = llm.chat(chats()[0], params)[0].outputs[0].text
    stop = text[5:8]
    cut = llm.chat(chats()[0], SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop=stop))[0].outputs[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (text[: text.index(stop)], "stop", stop)
    longer = llm.chat(chats()[0], SamplingParams(temperature=0.0, max_tokens=40, min_tokens=30))[0].outputs[0]
    assert len(longer.token_ids) >= 30


def test_the_next_turn_of_a_conversation_is_nearly_free(llm: LLM) -> None:
    chat = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What can you do?"}]
    length = 0
    for _ in range(3):
        [output] = llm.chat(chat, GREEDY)
        assert output.num_cached_tokens >= length - 1
        length = len(output.prompt_token_ids)
        chat += [{"role": "assistant", "content": output.outputs[0].text}, {"role": "user", "content": "Thanks!"}]


def test_an_empty_prefix_cache_has_no_hits(llm: LLM) -> None:
    assert llm.generate("one two three four", GREEDY)[0].num_cached_tokens == 0
    assert llm.generate("one two three four", GREEDY)[0].num_cached_tokens > 0
    llm.reset_prefix_cache()
    assert llm.generate("one two three four", GREEDY)[0].num_cached_tokens == 0
    salted = {"prompt": "one two three four", "cache_salt": "another tenant"}
    assert llm.generate(salted, GREEDY)[0].num_cached_tokens == 0


def test_stats_show_all_six_pools(llm: LLM) -> None:
    stats = llm.stats()
    assert list(stats.ledgers) == [
        "request row", "full attention", "sliding window", "recurrent state", "encoder", "LoRA",
    ]  # fmt: skip
    assert stats.ledgers["request row"].total == 8
    assert stats.ledgers["full attention"].total == llm.sizes.num_full_blocks


def test_a_progress_bar_shows_on_long_work_only(
    llm: LLM, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.generate("Hello", SamplingParams(max_tokens=1))
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("hybrid.llm.PROGRESS_AFTER_SECONDS", 0.0)
    llm.generate(["Hello"] * 3, SamplingParams(max_tokens=3))
    assert "3/3" in capfd.readouterr().err
    llm.generate(["Hello"] * 3, SamplingParams(max_tokens=3), use_tqdm=False)
    assert capfd.readouterr().err == ""


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_one_bad_prompt_among_many_names_its_index_and_runs_nothing(llm: LLM) -> None:
    before = llm.stats()
    with pytest.raises(ValueError, match="prompt 2: the prompt is empty"):
        llm.generate(["a", "b", "", "d"], GREEDY)
    with pytest.raises(ValueError, match="prompt 1: min_tokens 3000 does not fit"):
        llm.generate(["a", "b"], [GREEDY, SamplingParams(min_tokens=3000, max_tokens=None)])
    with pytest.raises(ValueError, match="conversation 1: message 0: 'role' must be"):
        llm.chat([chats()[0], [{"content": "x"}]], GREEDY)
    with pytest.raises(ValueError, match="names token 5000, but the vocabulary has"):
        llm.generate("a", SamplingParams(stop_token_ids=[5000]))
    assert llm.stats() == before
    assert len(llm.generate("a", GREEDY)) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate(7), "prompts must be text, token ids, a mapping or a list of these, got int"),
        (lambda llm: llm.generate(None), "got NoneType"),
        (lambda llm: llm.generate(["a", "b"], [GREEDY]), "2 prompts and 1 sampling_params"),
        (lambda llm: llm.generate(np.array(5)), "got ndarray"),
        (lambda llm: llm.generate(bytearray(b"ab")), "got bytearray"),
        (lambda llm: llm.generate("a", {"temperature": 0}), "sampling_params must be SamplingParams"),
        (lambda llm: llm.generate("a", 7), "sampling_params must be SamplingParams or a list of them, got 7"),
        (lambda llm: llm.generate("a", [None]), "sampling_params must be SamplingParams, got NoneType"),
        (lambda llm: llm.stream("a", {"temperature": 0}), "sampling_params must be SamplingParams"),
        (lambda llm: llm.stream_chat(chats()[0], [GREEDY] * 2), "1 prompts and 2 sampling_params"),
        (lambda llm: llm.generate("a", priority=5), "priority must be a list with an integer for each prompt, got 5"),
        (lambda llm: llm.generate("a", priority=[1, 2]), "1 prompts and 2 priorities"),
        (lambda llm: llm.generate("a", priority=["high"]), "a priority must be an integer, got 'high'"),
        (lambda llm: llm.chat("hello"), "messages must be a list of mappings, got str"),
        (lambda llm: llm.chat([]), "the conversation is empty"),
        (lambda llm: SamplingParams(temperature=float("nan")), "temperature must be finite"),
    ],
)
def test_calls_that_cannot_be_meant(llm: LLM, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(llm)


def test_a_prompt_that_no_pool_could_ever_hold_names_the_pool() -> None:
    llm = LLM("tiny", memory="8MiB", max_num_seqs=2, max_model_len=1000, num_full_blocks=10)
    with pytest.raises(ValueError, match="the full attention pool has 10 blocks in all and 32 are needed"):
        llm.generate([5] * 500, SamplingParams(max_tokens=8))
    with pytest.raises(ValueError, match=r"prompt 1: .* the full attention pool"):
        llm.generate([[5], [5] * 500], SamplingParams(max_tokens=8))
    assert_idle(llm)
    assert len(llm.generate([5] * 100, SamplingParams(max_tokens=8))) == 1


def test_a_failing_step_reaches_the_output_and_the_engine_goes_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(plan: object) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "launch", explode)
        [output] = llm.generate("Hello", GREEDY)
    assert (output.error, output.outputs[0].finish_reason) == ("RuntimeError: the device is gone", "error")
    assert llm.generate("Hello", GREEDY)[0].error is None


def test_ctrl_c_ends_the_call_and_not_the_engine(llm: LLM) -> None:
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Hello"] * 20, SamplingParams(max_tokens=1500, ignore_eos=True))
    timer.join()
    assert_idle(llm)
    assert llm.generate("Hello", GREEDY)[0].finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_between_steps_leaves_no_request_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    long = SamplingParams(n=2, max_tokens=1500, ignore_eos=True)
    add_request = llm.engine.add_request

    def add_and_press(*arguments: Any, **named: Any) -> None:
        add_request(*arguments, **named)
        signal.raise_signal(signal.SIGINT)

    def press(**_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    for target, name, pressing in ((llm.engine, "add_request", add_and_press), (hybrid.llm, "tqdm", press)):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, pressing)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["a", "b"], long)
        assert_idle(llm)


# --- building ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_seqs 9 is more than max_num_batched_tokens 8"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer of at least 1, got 0"),
        ({"block_size": 1.5}, "block_size must be an integer"),
        ({"max_model_len": 5000}, "max_model_len 5000 exceeds the model's limit of 2048"),
        ({"dtype": "int4"}, "dtype must be one of auto, float32, bfloat16, float16, got 'int4'"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"memory": "lots"}, "memory must be a number of bytes or a string such as '512MiB', got 'lots'"),
        ({"memory": 1000}, "memory of 1000 bytes does not hold one request"),
        ({"memory": "2MiB", "max_model_len": 2048}, "does not"),
        ({"memory": "900TiB"}, r"memory of '900TiB' is more than the [\d,]+ bytes of this machine"),
        ({"scheduling_policy": "random"}, "scheduling_policy 'random' is not one of"),
        ({"gpu_memory": 0.9}, "unknown argument gpu_memory; there are .*memory"),
        ({"max_plans_in_flight": 0}, "max_plans_in_flight 0 is less than 1"),
        ({"max_plans_in_flight": "two"}, "max_plans_in_flight must be an integer, got 'two'"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"async_scheduling": "yes"}, "async_scheduling must be true or false, got 'yes'"),
        ({"async_scheduling": 1}, "async_scheduling must be true or false, got 1"),
        (
            {"async_scheduling": True, "max_plans_in_flight": 2},
            "async_scheduling and max_plans_in_flight say the same: give one of them",
        ),
        ({"enforce_eager": "yes"}, "enforce_eager must be true or false"),
        ({"model": "no such model"}, r"neither a folder nor a bundled checkpoint \(.*tiny"),
        ({"model": ""}, "model must be a path or a name"),
        ({"encoder_tokens": 4}, "the encoder pool has 4 tokens in all and 16 are needed"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(**{"model": "tiny", "memory": "8MiB", "max_num_seqs": 2, **arguments})


def test_the_model_length_is_lowered_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM("tiny", memory="1MiB", max_num_seqs=1, max_num_batched_tokens=32)
    assert 2 < llm.sizes.max_model_len < 2048
    assert "max_model_len is" in caplog.text
    assert len(llm.generate([5] * (llm.sizes.max_model_len - 1), SamplingParams(max_tokens=None))) == 1
    assert LLM("tiny", memory="8MiB", max_num_seqs=2, num_full_blocks=10).sizes.max_model_len == 160


def test_the_default_number_of_requests_follows_the_token_budget() -> None:
    assert EngineArgs(model="tiny", max_num_batched_tokens=32).num_seqs == 32
    assert EngineArgs(model="tiny").num_seqs == 128


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (5, 5),
        ("512MiB", 512 * 2**20),
        ("1.5 g", 3 * 2**29),
        ("2GB", 2 * 10**9),
        ("64k", 65536),
        (" 10 B ", 10),
        ("7", 7),
    ],
)
def test_memory_sizes(text: int | str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "-5MiB", "5 parsecs", 0, -1, True, "0", 2.5])
def test_memory_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(ValueError, match="memory must be"):
        parse_memory(text)


def test_without_a_tokenizer_token_ids_go_in_and_out() -> None:
    llm = LLM("tiny", memory="8MiB", max_num_seqs=2, skip_tokenizer_init=True)
    [output] = llm.generate([5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True, logprobs=1))
    assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 4)
    with pytest.raises(ValueError, match="text needs a tokenizer"):
        llm.generate("Hello")
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        llm.generate([5], SamplingParams(stop="x"))
    with pytest.raises(ValueError, match="there is no tokenizer"):
        llm.get_tokenizer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the bundled checkpoint to break."""
    return Path(shutil.copytree(find_checkpoint("tiny"), tmp_path / "copy"))


def test_a_checkpoint_with_wrong_tensors_names_them(folder: Path) -> None:
    good = load_file(folder / "model.safetensors")
    name = "norm.weight"
    for wrong, message in (
        ({key: tensor for key, tensor in good.items() if key != name}, f"lacks tensor {name}"),
        ({**good, "extra.weight": torch.zeros(2)}, "holds unknown tensor extra.weight"),
        ({**good, name: torch.zeros(7)}, rf"tensor {name} has shape \[7\], expected"),
        ({**good, name: torch.full_like(good[name], float("nan"))}, f"tensor {name} holds .* NaN or infinite"),
    ):
        save_file(wrong, folder / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            LLM(folder, memory="8MiB", max_num_seqs=2)


def test_a_checkpoint_with_wrong_files_names_them(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 10**6]}))
    with pytest.raises(ValueError, match=r"eos_token_id 1000000 of generation_config\.json is no token of the model"):
        LLM(folder, memory="8MiB", max_num_seqs=2)
    (folder / "generation_config.json").unlink()
    for wrong, message in (
        (b"\xff\xfe", r"chat_template\.jinja cannot be read"),
        (b"{% for %}", "the chat template of .* cannot be compiled"),
    ):
        (folder / "chat_template.jinja").write_bytes(wrong)
        with pytest.raises(ValueError, match=message):
            LLM(folder, memory="8MiB", max_num_seqs=2)
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        LLM(folder, memory="8MiB", max_num_seqs=2)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        LLM(folder, memory="8MiB", max_num_seqs=2)
    assert LLM(folder, memory="8MiB", max_num_seqs=2, skip_tokenizer_init=True).generate([5], GREEDY)[0].finished
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        LLM(folder, memory="8MiB", max_num_seqs=2)


@pytest.mark.parametrize(
    ("recommended", "message"),
    [
        ({"temperature": "hot"}, "temperature must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"top_k": 2.5}, "top_k must be"),
        ({"top_p": 7}, "top_p must be"),
        ({"repetition_penalty": 0, "do_sample": False}, "repetition_penalty must be"),
    ],
)
def test_a_generation_config_that_cannot_be_is_named(folder: Path, recommended: dict[str, Any], message: str) -> None:
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    with pytest.raises(ValueError, match=rf"generation_config\.json: {message}"):
        LLM(folder, memory="8MiB", max_num_seqs=2)


def test_what_a_generation_config_says_of_draws_means_nothing_without_draws(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": -1, "top_p": 0}))
    params = LLM(folder, memory="8MiB", max_num_seqs=2).get_default_sampling_params()
    assert (params.temperature, params.top_p) == (0.0, 1.0)


def test_defaults_come_from_the_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 0.7, "top_k": 5, "eos_token_id": [2, 9]})
    )
    llm = LLM(folder, memory="8MiB", max_num_seqs=2)
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens) == (0.7, 5, 16)
    [output] = llm.generate("Hello", SamplingParams(logit_bias={9: 100.0}, max_tokens=5))
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (
        (9,), "stop", None,
    )  # fmt: skip


# --- pictures ----------------------------------------------------------------------------------------------------


def test_pictures_of_every_kind_are_read_or_refused(llm: LLM, tmp_path: Path) -> None:
    def ask(image: object) -> RequestOutput:
        content = [{"type": "image", "image": image}, {"type": "text", "text": "What is this?"}]
        return llm.chat([{"role": "user", "content": content}], GREEDY)[0]

    base = picture()
    good = {
        "cmyk.jpg": base.convert("CMYK"),
        "gray.png": base.convert("L"),
        "deep.png": Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257),
        "palette.gif": base.convert("P"),
        "alpha.webp": base.convert("RGBA"),
    }
    for name, image in good.items():
        image.save(tmp_path / name)
        assert ask((tmp_path / name).read_bytes()).finished, name
    base.save(tmp_path / "moving.webp", save_all=True, append_images=[picture("blue")])
    assert ask((tmp_path / "moving.webp").read_bytes()).finished
    (tmp_path / "text.png").write_text("this is no picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "gray.png").read_bytes()[:60])
    for name, message in (
        ("text.png", "is not an image"),
        ("cut.png", "cannot be decoded"),
        ("none.png", "does not exist"),
        ("", "cannot be opened"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(str(tmp_path / name))


def test_a_picture_seen_before_is_not_encoded_again(llm: LLM) -> None:
    llm.chat(chats()[3], GREEDY)
    before = llm.engine._runner.num_encoded_images  # type: ignore[attr-defined]
    llm.chat([{**chats()[3][0], "content": "Another beginning."}, *chats()[3][1:]], GREEDY)
    assert llm.engine._runner.num_encoded_images == before  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_full_blocks": 2**31}, "2147483648 full blocks, .* bytes; there are"),
        ({"num_state_slots": 10**12}, "1000000000000 state slots .* bytes; there are"),
        ({"memory": "1" * 400}, "memory must be less than that, got '111"),
        ({"model": "x" * 5000}, "^model 'x{200}' cannot be opened: File name too long$"),
        ({"tokenizer": 7}, "tokenizer must be a folder, got 7"),
        ({"device": "meta"}, "device 'meta' cannot be used"),
        ({"device": "privateuseone"}, "device 'privateuseone' cannot be used"),
        ({"num_threads": 10**9}, "num_threads must be at most 1024, got 1000000000"),
        ({"device": True}, "device must be a name such as 'cpu' or 'cuda:1', got True"),
    ],
)
def test_engines_that_cannot_be_built(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        LLM(**{"model": "tiny", "memory": "8MiB", "max_num_seqs": 2, **arguments})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
