"""llguidance behind GrammarBackend: JSON schemas, regular expressions, choices, Lark and EBNF grammars.

Works on bytes, so any byte-level or byte-fallback tokenizer fits. Special tokens are no text to it. Knows no requests.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybrid.structured_outputs import StructuredOutputsParams

from .backend import Bitmask, GrammarError
from .json_schema import check_schema

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_BYTES = 128 * 1024
MAX_ERROR_CHARACTERS = 300
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_DRAWING = re.compile(r"\s*(\d+ \|.*|\^*)\s*")
_NOTHING = "NoExtensionBias"  # the engine's word for a grammar without a first token
_EBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # Lark writes a single colon
# Neither keywords nor what oneOf excludes may count for nothing. Blank space is what indenting needs, and no more: a
# model could go on with it until it has no tokens left.
_JSON_OPTIONS: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": r" |\n {0,40}|\n\t{0,10}",
}
_ONE_LINE: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class LLGuidanceBackend:
    """For one tokenizer, which is read at the first compilation."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """tokenizer_json: gives it as the `tokenizers` library writes it. vocab_size: of the model."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()

    def check(self, params: StructuredOutputsParams) -> None:
        """Raises ValueError for what is too long, and for what a JSON schema says that cannot be honoured."""
        schema = _schema(params)
        text = schema or params.regex or params.grammar or "".join(params.choice or ())
        if (size := len(text.encode(errors="surrogatepass"))) > MAX_GRAMMAR_BYTES:
            raise ValueError(f"grammars may have {MAX_GRAMMAR_BYTES:,} bytes, this one has {size:,}")
        if _NO_TEXT.search(text):
            raise ValueError("a grammar holds a character that no text may hold")
        if schema is not None:
            check_schema(json.loads(schema))

    def compile(self, params: StructuredOutputsParams) -> LLGuidanceGrammar:
        """Raises ValueError, in one sentence."""
        from llguidance import LLMatcher

        tokenizer = self._read_tokenizer()
        try:
            matcher = LLMatcher(tokenizer, _source(params), log_level=0)
            if not matcher.is_error():
                matcher.compute_bitmask()  # what only shows at the first token is an error of the grammar, too
        except ValueError as error:
            raise ValueError(_one_line(str(error))) from None
        if matcher.is_error():
            raise ValueError(_one_line(matcher.get_error()))
        return LLGuidanceGrammar(matcher, tokenizer.vocab_size)

    def _read_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer
        from tokenizers import Tokenizer

        with self._lock:
            if self._tokenizer is None:
                text = self._tokenizer_json()
                size = max(self._vocab_size, Tokenizer.from_str(text).get_vocab_size())
                try:
                    self._tokenizer = LLTokenizer(text, n_vocab=size, eos_token=self._eos_token_ids or None)
                except ValueError as error:
                    raise ValueError(f"this tokenizer cannot serve grammars: {_one_line(str(error))}") from None
            return self._tokenizer


class LLGuidanceGrammar:
    """A matcher at its start, of which every sequence gets a copy."""

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self._vocab_size = vocab_size
        self._lock = threading.Lock()

    def matcher(self) -> LLGuidanceMatcher:
        with self._lock:
            return LLGuidanceMatcher(self._start.deep_copy(), self._vocab_size)


class LLGuidanceMatcher:
    """See `Matcher`."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._buffer: Bitmask = np.zeros(-(-vocab_size // 32), dtype=np.int32)

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def is_stopped(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        """`bitmask` may be shorter than the tokenizer's vocabulary: further tokens are none of the model's."""
        self._matcher.unsafe_compute_mask_ptr(self._buffer.ctypes.data, self._buffer.nbytes)
        self._check()
        common = min(len(bitmask), len(self._buffer))
        bitmask[:common] = self._buffer[:common]
        bitmask[common:] = 0

    def consume(self, token_ids: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(token_ids))
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_one_line(self._matcher.get_error()))


def _source(params: StructuredOutputsParams) -> str:
    """The grammar as llguidance writes it. Raises ValueError."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    schema = _schema(params)
    if schema == "false":
        raise ValueError("the JSON schema false allows nothing")
    if schema is not None:  # true is no object, to which options could be applied
        options = _ONE_LINE if params.disable_any_whitespace else _JSON_OPTIONS
        return LLMatcher.grammar_from_json_schema("{}" if schema == "true" else schema, overrides=options)
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(_literal, params.choice)))
    assert params.grammar is not None
    if not _EBNF_RULE.search(params.grammar):
        return LLMatcher.grammar_from_lark(params.grammar)
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(params.grammar))
    except Exception as error:  # it raises bare Exception
        raise ValueError(f"the EBNF grammar cannot be read: {error}") from None


def _schema(params: StructuredOutputsParams) -> str | None:
    """As JSON text, where a schema is asked for."""
    if params.json_object:
        return '{"type": "object"}'
    assert params.json is None or isinstance(params.json, str)
    return params.json


def _literal(text: str) -> str:
    """A regular expression that matches `text` alone."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _one_line(message: str) -> str:
    """An error without the drawings under it, and without what the parser tells its authors."""
    message = message.partition("<state>")[0]
    if message.strip() == _NOTHING:
        return "the grammar allows no text at all"
    lines = [line.strip() for line in message.splitlines() if not _DRAWING.fullmatch(line)]
    text = " ".join(lines)
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[: MAX_ERROR_CHARACTERS - 3]}..."
