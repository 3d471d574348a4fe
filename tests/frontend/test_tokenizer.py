"""Tokenizers of checkpoint folders: those of real families, small, against transformers' AutoTokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hybrid.frontend import chat_template
from hybrid.frontend.tokenizer import Tokenizer
from tests.models.gguf_writing import byte_tokens

TEXTS = [
    "Hello, world!",
    "  it's 12345 tokens\n\n\tand lines ",
    "größer naïve 日本語 🙂 \x00 \u200b",
    "<s>a</s> <|user|>b<|end|> <extra> c",
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "2 < 3 & é?"},
]
SPECIAL = ["<s>", "</s>", "<|user|>", "<|end|>"]


def byte_level(pattern: str | None) -> tokenizers.Tokenizer:
    """GPT-2, Llama 3, Qwen: bytes as characters."""
    described = byte_tokens(["h e", "l l", "he ll", "1 2"])
    vocabulary = {token: index for index, token in enumerate(described["ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in described["ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_like() -> tokenizers.Tokenizer:
    """Llama 2, Mistral, Gemma: words begin with a low line, unknown characters become bytes."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrdit12345,!'", "he", "▁he"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {word: index for index, word in enumerate(words)},
            [("h", "e"), ("▁", "he")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    """T5 and many others."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), *((c, -3.0) for c in "Hheloworldit,!'"), ("▁it", -1.5)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(list(dict(pieces).items()), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt-2": lambda: byte_level(None),
    "llama 3": lambda: byte_level(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+"),
    "llama 2": sentencepiece_like,
    "unigram": unigram,
}
TEMPLATES = {
    "chatml": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "tools, and what is only there in training": "{{ bos_token }}{% if tools is not none %}never{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% elif loop.index == 99 %}{% break %}{% else %}{{ m | tojson }}{{ [1] | tojson(indent=2) }}{% endif %}"
    "{% endfor %}",
    "{%- spaces": "  {% set x = namespace(n=0) %}\n  {% for m in messages %}\n    {% set x.n = x.n + 1 %}\n"
    "{{ x.n }}{{ m['content'] | trim }}\n  {% endfor %}\n{{ strftime_now('') }}",
}


def save(folder: Path, kind: str, template: str | None = None, **config: Any) -> Any:
    """As transformers saves it; returns what AutoTokenizer reads."""
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    fast = cast(Any, PreTrainedTokenizerFast)(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **config)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_texts_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs = save(tmp_path, kind)
    ours = Tokenizer(tmp_path)
    for text in TEXTS:
        for add in (True, False):
            ids = theirs(text, add_special_tokens=add).input_ids
            assert ours.encode(text, add).token_ids.tolist() == ids, text
            for skip in (True, False):
                kept = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip) == kept, text
    assert ours.special_token_ids == {theirs.convert_tokens_to_ids(token) for token in SPECIAL}


@pytest.mark.parametrize("template", TEMPLATES)
def test_chats_are_those_of_transformers(template: str, tmp_path: Path) -> None:
    theirs = save(tmp_path, "gpt-2", TEMPLATES[template])
    ours = Tokenizer(tmp_path)
    for add in (True, False):
        expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=add)
        assert ours.render_chat(CHAT, add) == expected
        assert expected.count("Yo") == 1


PARTS_ONLY = {  # as LLaVA's and SmolVLM's: strings would be gone through letter by letter
    "llava": "{% for m in messages %}{{ m.role }}: "
    "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text + ' ' }}{% endfor %}{% endfor %}",
    "smolvlm": "{% for m in messages %}{{ m.role }}{{ ':' if m.content[0].type == 'image' else ': ' }}"
    "{% for line in m.content %}{% if line.type == 'text' %}{{ line.text }}{% elif line.type == 'image' %}<image>"
    "{% endif %}{% endfor %}\n{% endfor %}",
}


@pytest.mark.parametrize("template", PARTS_ONLY)
def test_a_template_that_reads_parts_only_is_given_parts(template: str, tmp_path: Path) -> None:
    theirs = save(tmp_path, "gpt-2", PARTS_ONLY[template])
    texts: list[dict[str, Any]] = [*CHAT, {"role": "assistant", "content": ""}]
    picture = {"role": "user", "content": [{"type": "image"}]}
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in texts]
    rendered = Tokenizer(tmp_path).render_chat([*texts, picture], True)
    assert rendered == theirs.apply_chat_template([*parts, picture], tokenize=False)
    assert all(message["content"] in rendered for message in texts)


def config_of(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_template_lies_in_a_file_or_in_a_configuration(tmp_path: Path) -> None:
    save(tmp_path, "gpt-2", "of the file {{ bos_token }}")
    message = [{"role": "user", "content": "Hi"}]
    config_of(tmp_path, chat_template="of the configuration {{ eos_token }}")
    assert Tokenizer(tmp_path).render_chat(message) == "of the file <s>"
    (tmp_path / "chat_template.jinja").unlink()
    assert Tokenizer(tmp_path).render_chat(message) == "of the configuration </s>"
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "by name"}]
    config_of(tmp_path, chat_template=named)
    assert Tokenizer(tmp_path).render_chat(message) == "by name"
    assert AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(message, tokenize=False) == "by name"
    config_of(tmp_path, chat_template=named[:1])
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(tmp_path).render_chat(message)
    config_of(tmp_path, chat_template=None)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    assert Tokenizer(tmp_path).render_chat(message) == "of the processor"


def test_special_tokens_of_old_folders(tmp_path: Path) -> None:
    """Names in a file of their own, tokens that only the configuration knows, truncation left over from training."""
    save(tmp_path, "gpt-2", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}")
    raw = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    raw.enable_truncation(3)
    raw.enable_padding(length=50)
    raw.save(str(tmp_path / "tokenizer.json"))
    size = raw.get_vocab_size()
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<b>"}, "eos_token": "<e>"}')
    added = {
        str(size + 1): {"content": "<later>", "special": False, "normalized": False},
        str(size): {"content": "<extra>", "special": True, "normalized": False, "lstrip": False},
        "260": {"content": "<s>", "special": True},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "added_tokens_decoder": added}))
    ours = Tokenizer(tmp_path)
    assert ours.render_chat([{"role": "user", "content": ""}]) == "<b>|</s>|"
    assert ours.encode("a<extra>b<later>c", False).token_ids.tolist() == [97, size, 98, size + 1, 99]
    assert size in ours.special_token_ids and size + 1 not in ours.special_token_ids
    assert len(ours.encode("a long text of many tokens", False).token_ids) == 26
    config_of(tmp_path, added_tokens_decoder={"9000": {"content": "<far>", "special": True}})
    with pytest.raises(ValueError, match="the added token '<far>' cannot have the id 9000"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (None, "holds no tokenizer.json"),
        ("tokenizer.model", "holds no tokenizer.json but tokenizer.model, a sentencepiece or tiktoken model, which is"),
        ("spiece.model", "holds no tokenizer.json but spiece.model, a sentencepiece model, which is not read"),
        (
            "vocab.json",
            "holds no tokenizer.json but vocab.json, a bare vocabulary, which is not read: let transformers",
        ),
    ],
)
def test_a_folder_without_a_fast_tokenizer(name: str | None, words: str, tmp_path: Path) -> None:
    if name is not None:
        (tmp_path / name).write_bytes(b"\x0a\x0e\x0a\x05<unk>")
    with pytest.raises(ValueError, match=str(tmp_path)) as caught:
        Tokenizer(tmp_path)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", '{"model": {"type": "Unheard"}}', "cannot be read"),
        ("tokenizer.json", '{"version": "\\n"}', "cannot be read"),
        ("tokenizer_config.json", "[]", "holds a JSON list"),
        ("special_tokens_map.json", "nonsense", "is not JSON"),
        ("chat_template.jinja", "{% if %}", "cannot be compiled: "),
    ],
)
def test_files_that_are_wrong_are_named(file: str, content: str, words: str, tmp_path: Path) -> None:
    save(tmp_path, "gpt-2")
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=str(tmp_path)) as caught:
        Tokenizer(tmp_path)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('not this') }}",
        "{{ messages[9].content }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    ],
)
def test_a_template_that_fails_is_one_sentence(template: str, tmp_path: Path) -> None:
    save(tmp_path, "gpt-2", template)
    with pytest.raises(ValueError, match="the chat template refuses these messages"):
        Tokenizer(tmp_path).render_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{{ twice(n - 1) if n }}{{ twice(n - 1) if n }}{% endmacro %}{{ twice(99) }}",
        "{{ 'a' * 9999999999 }}",
        "{{ 9999999999 * messages }}",
        "{{ 99 ** 99 ** 99 ** 99 }}",
        "{{ 2 ** 9999999999 }}",
    ],
)
def test_a_template_that_would_never_end_is_one_sentence(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "MAX_ROUNDS", 10_000)
    save(tmp_path, "gpt-2", template)
    with pytest.raises(ValueError, match="the chat template refuses these messages: it "):
        Tokenizer(tmp_path).render_chat([{"role": "user", "content": "Hi"}])


def test_what_a_template_says_is_cut_to_a_sentence(tmp_path: Path) -> None:
    save(tmp_path, "gpt-2", "{{ raise_exception('no\n' * 999) }}")
    with pytest.raises(ValueError, match=r"refuses these messages: no no .*\.\.\.$") as caught:
        Tokenizer(tmp_path).render_chat([{"role": "user", "content": "Hi"}])
    assert len(str(caught.value)) < 300
