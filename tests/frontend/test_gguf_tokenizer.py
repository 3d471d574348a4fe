"""Tokenizers from GGUF metadata split texts as the families do that they come from."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from hybrid.frontend.gguf_tokenizer import PRE_TOKENIZERS
from hybrid.frontend.tokenizer import Tokenizer as OurTokenizer
from tests.models.gguf_writing import byte_tokens, write

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\tand a tab\n\n\nthree lines \n",
    "in 2024 it's 12345.678e-9, isn't it? I'LL say WE'VE x²³ ½ Ⅷ",
    "größer ÄÖÜ naïve 日本語のテキスト 12３４ العربية ١٢٣ हिन्दी १२३",
    "🙂👩‍👩‍👧 e\u0301 \u200b \xa0 \u3000 \r\n \r",
    "def f(x):\n    return x**2 # comment\n\n\n",
    "$a+b=c^2|~`<tag/>`",
    "<|end|>x<|start|> <|end|><|endx|>",
]
MERGES = ["h e", "l l", "he ll", "1 2", "Ġ t", "12 3", "hell o"]


def tokenizer(tmp_path: Path, pre: str = "gpt-2", **changes: Any) -> OurTokenizer:
    """Changes: keys with `_` for `.`; None leaves a key out."""
    tokens = byte_tokens(MERGES, ["<|end|>", "<|start|>"], pre)
    tokens |= {key.replace("ggml_", "ggml.", 1): value for key, value in changes.items()}
    path = tmp_path / "x.gguf"
    return OurTokenizer(write(path, {}, {}, tokens={key: value for key, value in tokens.items() if value is not None}))


def pieces(tokenizer: OurTokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text).token_ids.tolist()]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_text_comes_back(pre: str, tmp_path: Path) -> None:
    ours = tokenizer(tmp_path, pre)
    for text in TEXTS:
        encoded = ours.encode(text, add_special_tokens=False)
        assert ours.decode(encoded.token_ids.tolist()) == text
        assert encoded.position_of(len(text)) == len(encoded.token_ids)


def test_special_tokens_are_never_split(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path)
    assert pieces(ours, "a<|end|>b<|start|><|end") == ["a", "<|end|>", "b", "<|start|>", *"<|end"]
    assert ours.special_token_ids == {256 + len(MERGES), 257 + len(MERGES)}
    user_defined = [1] * (256 + len(MERGES)) + [4, 3]
    ours = tokenizer(tmp_path, ggml_token_type=user_defined)
    assert pieces(ours, "a<|end|>b<|start|>") == ["a", "<|end|>", "b", "<|start|>"]
    assert ours.special_token_ids == {257 + len(MERGES)}


def test_digits(tmp_path: Path) -> None:
    for pre, expected in (
        ("smollm", ["hello", " ", "1", "2", "3", "4"]),
        ("qwen2", ["hello", " ", "1", "2", "3", "4"]),
        ("llama-bpe", ["hello", " ", "123", "4"]),
        ("gpt-2", ["hello", " ", "123", "4"]),
        ("default", ["hello", " ", "123", "4"]),
    ):
        assert pieces(tokenizer(tmp_path, pre), "hello 1234") == expected
    assert pieces(tokenizer(tmp_path, "llama-bpe"), "12123") == ["12", "1", "2", "3"]  # groups of three: 121, 23
    assert pieces(tokenizer(tmp_path, "gpt-2"), "12123") == ["12", "123"]
    assert pieces(tokenizer(tmp_path, "default"), "12123") == ["12", "1", "2", "3"]


def published(pre: str) -> pre_tokenizers.PreTokenizer:
    """How the `tokenizer.json` of the families writes its pre-tokenizer."""
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    taken = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}[pre]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + taken
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_tokens_are_those_of_the_published_pre_tokenizers(pre: str, tmp_path: Path) -> None:
    tokens = byte_tokens(MERGES)
    vocabulary = {token: index for index, token in enumerate(tokens["ggml.tokens"])}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)]
    theirs = Tokenizer(models.BPE(vocabulary, pairs))
    theirs.pre_tokenizer = published(pre)
    ours = tokenizer(tmp_path, pre)
    for text in TEXTS:
        if "<|" not in text:
            assert ours.encode(text, add_special_tokens=False).token_ids.tolist() == theirs.encode(text).ids, text


def test_llama3_takes_whole_tokens_whatever_the_merges_say(tmp_path: Path) -> None:
    """A token of which the merges do not make all."""
    tokens = byte_tokens(["h e"], ["<|end|>"])["ggml.tokens"]
    changes = {"ggml_tokens": [*tokens, "helo"], "ggml_merges": ["h e"], "ggml_token_type": None}
    assert pieces(tokenizer(tmp_path, "llama-bpe", **changes), "helo") == ["helo"]
    assert pieces(tokenizer(tmp_path, "qwen2", **changes), "helo") == ["he", "l", "o"]


def test_first_and_last_tokens(tmp_path: Path) -> None:
    end, start = 256 + len(MERGES), 257 + len(MERGES)
    ids: dict[str, Any] = {"ggml_bos_token_id": start, "ggml_eos_token_id": end}
    assert pieces(tokenizer(tmp_path, **ids), "a") == ["a"]
    assert pieces(tokenizer(tmp_path, "llama-bpe", **ids), "a") == ["<|start|>", "a"]
    assert pieces(tokenizer(tmp_path, "llama-bpe", **ids, ggml_add_bos_token=False), "a") == ["a"]
    both = tokenizer(tmp_path, **ids, ggml_add_bos_token=True, ggml_add_eos_token=True)
    assert pieces(both, "a") == ["<|start|>", "a", "<|end|>"]
    assert both.encode("a", add_special_tokens=False).token_ids.tolist() == [ord("a")]


def test_the_chat_template_knows_the_special_tokens(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"
    ids: dict[str, Any] = {"ggml_bos_token_id": 257 + len(MERGES), "ggml_eos_token_id": 256 + len(MERGES)}
    ours = tokenizer(tmp_path, **ids, chat_template=template)
    assert ours.render_chat([{"role": "user", "content": "Hi"}]) == "<|start|>Hi<|end|>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ggml_model": None}, "the file holds no tokenizer"),
        ({"ggml_model": "llama"}, "tokenizer.ggml.model 'llama' is not supported, only 'gpt2'"),
        ({"ggml_pre": None}, "tokenizer.ggml.pre None is not supported"),
        ({"ggml_pre": "tekken"}, "tokenizer.ggml.pre 'tekken' is not supported; supported are default, gpt-2, "),
        ({"ggml_tokens": None}, "the file holds no list tokenizer.ggml.tokens"),
        ({"ggml_tokens": ["a", "b", "a"]}, "tokenizer.ggml.tokens lists 'a' twice"),
        ({"ggml_token_type": [1, 1]}, "tokenizer.ggml.token_type lists 2 kinds for 265 tokens"),
        ({"ggml_merges": None}, "the file holds no list tokenizer.ggml.merges"),
        ({"ggml_merges": ["ab"]}, "tokenizer.ggml.merges holds 'ab', which is no pair of tokens"),
        ({"ggml_merges": ["x y"]}, "tokenizer.ggml.merges do not fit the tokens"),
        ({"ggml_eos_token_id": 999}, "tokenizer.ggml.eos_token_id is 999, which is no token"),
        ({"chat_template": "{% if %}"}, "the chat template of "),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"x\.gguf(:| cannot be compiled:) ") as caught:
        tokenizer(tmp_path, **changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)
