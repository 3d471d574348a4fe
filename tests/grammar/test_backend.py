"""llguidance behind our protocol: what it lets through, token by token, and what it refuses, in which words."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from hybrid.checkpoints import find_checkpoint
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.frontend.tool_calls import MAX_CALLS, read_tools
from hybrid.grammar.backend import Bitmask, GrammarError, Matcher
from hybrid.grammar.llguidance_backend import MAX_GRAMMAR_BYTES, LLGuidanceBackend
from hybrid.structured_outputs import StructuredOutputsParams

EOS = 2
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(find_checkpoint("tiny"))


@pytest.fixture(scope="module")
def vocab_size(tokenizer: Tokenizer) -> int:
    return len(json.loads(tokenizer.to_json())["model"]["vocab"])


@pytest.fixture(scope="module")
def backend(tokenizer: Tokenizer, vocab_size: int) -> LLGuidanceBackend:
    return LLGuidanceBackend(tokenizer.to_json, vocab_size, (EOS,))


def compiled(backend: LLGuidanceBackend, params: StructuredOutputsParams) -> Matcher:
    backend.check(params)
    return backend.compile(params).matcher()


def allowed(matcher: Matcher, vocab_size: int) -> set[int]:
    mask: Bitmask = np.full(-(-vocab_size // 32), -1, dtype=np.int32)
    matcher.fill_bitmask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[vocab_size:].any()
    return set(np.flatnonzero(bits).tolist())


def ends(matcher: Matcher) -> tuple[bool, bool]:
    """Whether the output may end here, and whether it must."""
    return matcher.is_accepting, matcher.is_stopped


def accepts(backend: LLGuidanceBackend, tokenizer: Tokenizer, params: StructuredOutputsParams, text: str) -> bool:
    """Whether `text` is a whole output: every token of it among those that the mask of its place allows."""
    matcher = compiled(backend, params)
    for token_id in tokenizer.encode(text, add_special_tokens=False).token_ids.tolist():
        if token_id not in allowed(matcher, 820):
            return False
        matcher.consume([token_id])
    return matcher.is_accepting


@pytest.mark.parametrize(
    ("params", "good", "bad"),
    [
        (StructuredOutputsParams(json=NUMBER), '{"a": -12}', '{"a": "x"}'),
        (StructuredOutputsParams(json=NUMBER), '{\n  "a": 1\n}', '{"a": 1, "b": 2}'),
        (StructuredOutputsParams(json="true"), "[1, {}]", "[1, {}"),
        (StructuredOutputsParams(json_object=True), '{"x": [null, "\\n\\\\"]}', "[1]"),
        (StructuredOutputsParams(regex=r"[a-c]{2,3}\d"), "abc7", "xabc7"),
        (StructuredOutputsParams(regex="^ab$"), "ab", "abc"),
        (StructuredOutputsParams(choice=["a.b", "é\n|("]), "é\n|(", "axb"),
        (StructuredOutputsParams(grammar='start: "<" NAME ">"\nNAME: /[a-z]+/'), "<abc>", "<>"),
        (StructuredOutputsParams(grammar='root ::= "yes" | "no" more?\nmore ::= "t" [0-9]+'), "not42", "yest4"),
    ],
)
def test_what_is_allowed(
    backend: LLGuidanceBackend, tokenizer: Tokenizer, params: StructuredOutputsParams, good: str, bad: str
) -> None:
    assert accepts(backend, tokenizer, params, good)
    assert not accepts(backend, tokenizer, params, bad)


def test_blank_space_has_a_bound(backend: LLGuidanceBackend, tokenizer: Tokenizer) -> None:
    params = StructuredOutputsParams(json=NUMBER)
    for text in ('{"a":1}', '{ "a" : 1 }', '{\n\t"a": 1\n}'):
        assert accepts(backend, tokenizer, params, text)
    for text in ('{  "a": 1}', '{\n\n"a": 1}', ' {"a": 1}', '{"a": 1}\n'):
        assert not accepts(backend, tokenizer, params, text)


def test_forced_calls_come_to_an_end(backend: LLGuidanceBackend, tokenizer: Tokenizer) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("clock", "date")]
    params = read_tools(tools, "required").structured_outputs()
    assert params is not None
    call = '{"name": "clock", "parameters": {}}'
    for number in (0, 1, MAX_CALLS, MAX_CALLS + 1):
        text = f"[{', '.join([call] * number)}]"
        assert accepts(backend, tokenizer, params, text) == (1 <= number <= MAX_CALLS)
    for blanks in ("\n", " ", "\n    "):
        assert not accepts(backend, tokenizer, params, f"[{blanks}{call}{blanks}]")


def test_json_in_one_line(backend: LLGuidanceBackend, tokenizer: Tokenizer) -> None:
    value = {"a": [1, {"b": "x y"}, []], "c": None}
    for params in (
        StructuredOutputsParams(json_object=True, disable_any_whitespace=True),
        StructuredOutputsParams(json={"type": "object"}, disable_any_whitespace=True),
    ):
        assert accepts(backend, tokenizer, params, json.dumps(value))
        assert not accepts(backend, tokenizer, params, json.dumps(value, indent=1))


def test_the_end_is_allowed_where_the_grammar_ends(backend: LLGuidanceBackend, vocab_size: int) -> None:
    matcher = compiled(backend, StructuredOutputsParams(regex="a+|b"))
    [a], [b] = (Tokenizer(find_checkpoint("tiny")).encode(t, add_special_tokens=False).token_ids.tolist() for t in "ab")
    assert ends(matcher) == (False, False) and EOS not in allowed(matcher, vocab_size)
    matcher.consume([a])
    assert ends(matcher) == (True, False)
    assert {a, EOS} <= allowed(matcher, vocab_size)
    other = compiled(backend, StructuredOutputsParams(regex="a+|b"))
    other.consume([b])
    assert ends(other) == (True, True) and allowed(other, vocab_size) == {EOS}


def test_matchers_of_one_grammar_are_apart(backend: LLGuidanceBackend, tokenizer: Tokenizer, vocab_size: int) -> None:
    grammar = backend.compile(StructuredOutputsParams(choice=["ab", "cd"]))
    one, two = grammar.matcher(), grammar.matcher()
    one.consume(tokenizer.encode("ab", add_special_tokens=False).token_ids.tolist())
    assert one.is_stopped and not two.is_accepting
    assert EOS not in allowed(two, vocab_size)


def test_a_token_that_is_not_allowed_is_an_error(backend: LLGuidanceBackend) -> None:
    matcher = compiled(backend, StructuredOutputsParams(choice=["a"]))
    with pytest.raises(GrammarError):
        matcher.consume([EOS])
    with pytest.raises(GrammarError):  # and stays one
        matcher.fill_bitmask(np.zeros(26, dtype=np.int32))
    assert not matcher.is_stopped


def test_no_special_token_inside_strings(backend: LLGuidanceBackend, tokenizer: Tokenizer, vocab_size: int) -> None:
    for params in (StructuredOutputsParams(json={"type": "string"}), StructuredOutputsParams(regex='"(.|\n)*')):
        matcher = compiled(backend, params)
        matcher.consume(tokenizer.encode('"', add_special_tokens=False).token_ids.tolist())
        inside = allowed(matcher, vocab_size)
        assert len(inside) > 300
        specials = set(tokenizer.special_token_ids) & inside
        assert specials <= {EOS} and (EOS in specials) == matcher.is_accepting


def test_several_tokens_may_end_a_text(tokenizer: Tokenizer, vocab_size: int) -> None:
    matcher = compiled(LLGuidanceBackend(tokenizer.to_json, vocab_size, (0, EOS)), StructuredOutputsParams(regex="a*"))
    assert {0, EOS} <= allowed(matcher, vocab_size)


@pytest.mark.parametrize("more", [-40, 0, 1, 300])
def test_model_and_tokenizer_of_different_sizes(tokenizer: Tokenizer, vocab_size: int, more: int) -> None:
    """Rows of logits without a token are never allowed; neither are tokens without a row."""
    backend = LLGuidanceBackend(tokenizer.to_json, vocab_size + more, (EOS,))
    matcher = compiled(backend, StructuredOutputsParams(regex=".*"))
    mask: Bitmask = np.zeros(-(-(vocab_size + more) // 32), dtype=np.int32)
    matcher.fill_bitmask(mask)
    bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert len(bits) > 300 and bits.max() < vocab_size


def test_the_tokenizer_of_smollm2() -> None:
    smollm2 = Tokenizer(find_checkpoint("smollm2"))
    backend = LLGuidanceBackend(smollm2.to_json, 49152, (EOS,))
    matcher = compiled(backend, StructuredOutputsParams(json={"const": {"é": "中\U0001f600"}}))
    for token_id in smollm2.encode('{"é": "中\U0001f600"}', add_special_tokens=False).token_ids.tolist():
        assert token_id in allowed(matcher, 49152)
        matcher.consume([token_id])
    assert matcher.is_stopped


def byte_fallback_tokenizer() -> str:
    """As Llama 2 has it: words with a mark for the space before them, and a token for each byte."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *'▁abc{}:"', "▁a"]
    bpe = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[("▁", "a")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(tokenizer.to_str())


def test_byte_fallback() -> None:
    text = byte_fallback_tokenizer()
    tokenizer = tokenizers.Tokenizer.from_str(text)
    size = tokenizer.get_vocab_size()
    matcher = compiled(LLGuidanceBackend(lambda: text, size, (EOS,)), StructuredOutputsParams(choice=["é ab\n"]))
    ids = tokenizer.encode("é ab\n", add_special_tokens=False).ids
    assert [tokenizer.id_to_token(token_id) for token_id in ids] == ["<0xC3>", "<0xA9>", "▁a", "b", "<0x0A>"]
    for token_id in ids:
        assert token_id in allowed(matcher, size)
        matcher.consume([token_id])
    assert matcher.is_stopped


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "null"}}, "'not'"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "'if'"),
        ({"dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
        ({"dependentSchemas": {}}, "'dependentSchemas'"),
        ({"dependencies": {}}, "'dependencies'"),
        ({"contains": {}}, "'contains'"),
        ({"minContains": 1}, "'minContains'"),
        ({"uniqueItems": True}, "'uniqueItems'"),
        ({"propertyNames": {}}, "'propertyNames'"),
        ({"unevaluatedProperties": False}, "'unevaluatedProperties'"),
        ({"unevaluatedItems": False}, "'unevaluatedItems'"),
        ({"additionalItems": False}, "'additionalItems'"),
        ({"items": [{"type": "null"}]}, "'items'"),
        ({"contentEncoding": "base64"}, "'contentEncoding'"),
        ({"contentMediaType": "application/json"}, "'contentMediaType'"),
        ({"contentSchema": {}}, "'contentSchema'"),
        ({"$dynamicRef": "#a"}, r"'\$dynamicRef'"),
        ({"$dynamicAnchor": "a"}, r"'\$dynamicAnchor'"),
        ({"$recursiveRef": "#"}, r"'\$recursiveRef'"),
        ({"nullable": True}, "'nullable'"),
        ({"type": "string", "discriminator": {}}, "'discriminator'"),
        ({"divisibleBy": 3}, "'divisibleBy'"),
        ({"minimum": 1, "exclusiveMinimum": True}, "'exclusiveMinimum'"),
        ({"required": True}, "'required'"),
        ({"x-guidance": {"lenient": True}}, "'x-guidance'"),
        ({"minlength": 3}, "'minlength'"),
        ({"properties": {"a": {"anyOf": [{}, {"items": {"not": {}}}]}}}, r"at \$.properties.a.anyOf\[1\].items is"),
        ({"properties": {"a": 3}}, r"\$.properties.a must be an object or a boolean, got 3"),
        ({"format": "phone"}, "phone"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"properties": {"a": {}}, "minProperties": 1}, "min/maxProperties"),
        ({"$ref": "https://example.com/other.json"}, "other.json"),
        ({"$ref": "#/$defs/none"}, "/none"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ],
)
def test_what_a_schema_may_not_say_is_named(backend: LLGuidanceBackend, schema: object, named: str) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        compiled(backend, StructuredOutputsParams(json=json.dumps(schema)))
    assert "\n" not in str(caught.value)


def test_a_property_may_have_any_name(backend: LLGuidanceBackend) -> None:
    """Keywords are looked for where schemas stand, and nowhere else."""
    compiled(backend, StructuredOutputsParams(json={"properties": {"not": {"enum": [{"if": 1}]}}, "default": {"x": 1}}))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (StructuredOutputsParams(regex="a("), "unclosed group"),
        (StructuredOutputsParams(grammar="start: nothing"), "nothing"),
        (StructuredOutputsParams(grammar="root ::= ("), "EBNF"),
        (StructuredOutputsParams(grammar="root ::= other"), "other"),
        (StructuredOutputsParams(json="false"), "allows nothing"),
        (StructuredOutputsParams(regex=r"[^\s\S]"), r"\Athe grammar allows no text at all\Z"),
        (StructuredOutputsParams(json={"$ref": "#"}), r"\Athe grammar allows no text at all\Z"),
        (StructuredOutputsParams(regex="a\0"), "character"),
        (StructuredOutputsParams(choice=["\ud800"]), "character"),
        (StructuredOutputsParams(regex="a" * (MAX_GRAMMAR_BYTES + 1)), f"{MAX_GRAMMAR_BYTES:,} bytes"),
        (StructuredOutputsParams(json='{"items":' * 100 + "{}" + "}" * 100), "nested"),
        (StructuredOutputsParams(grammar="start: " + "(" * 500 + '"a"' + ")" * 500), "nested"),
    ],
)
def test_what_cannot_be_compiled_is_said_in_a_line(
    backend: LLGuidanceBackend, params: StructuredOutputsParams, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        compiled(backend, params)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_tokenizer_without_bytes_is_refused() -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="this tokenizer cannot serve grammars"):
        LLGuidanceBackend(words.to_str, 2, (0,)).compile(StructuredOutputsParams(regex="a"))


_CHAINS = """
from hybrid.checkpoints import find_checkpoint
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.grammar.compiler import GrammarCompiler
from hybrid.grammar.llguidance_backend import MAX_GRAMMAR_BYTES, LLGuidanceBackend
from hybrid.scheduler.request import GateStatus
from hybrid.structured_outputs import StructuredOutputsParams

def chain(line, last):
    lines, size, number = [], 200, 0
    while size < MAX_GRAMMAR_BYTES:
        lines.append(line(number, number + 1))
        size += len(lines[-1]) + 2
        number += 1
    return lines[:-1] + [last(number - 1)]

def lark(name):
    return "\\n".join([f"start:{name}0", *chain(lambda a, b: f"{name}{a}:{name}{b}", lambda a: f'{name}{a}:"x"')])

def schema():
    entries = chain(lambda a, b: f'"{a:x}": {{"items": {{"$ref": "#/$defs/{b:x}"}}}}', lambda a: f'"{a:x}": {{}}')
    return '{"$ref": "#/$defs/0", "$defs": {' + ", ".join(entries) + "}}"

compiler = GrammarCompiler(LLGuidanceBackend(Tokenizer(find_checkpoint("tiny")).to_json, 820, (2,)))
for given in ({"grammar": lark("a")}, {"grammar": lark("A")}, {"json": schema()}):
    params = StructuredOutputsParams(**given)
    compilation = compiler.submit(params)
    while compilation.status() is GateStatus.PENDING:
        pass
    ready = compilation.status() is GateStatus.READY
    print(len(str(params)), compilation.grammar().matcher().is_accepting if ready else compilation.error())
print("survived")
"""


def test_the_longest_chains_of_rules_do_not_overflow_the_stack() -> None:
    done = subprocess.run([sys.executable, "-c", _CHAINS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.endswith("survived\n"), (done.returncode, done.stdout[-500:], done.stderr[-500:])
