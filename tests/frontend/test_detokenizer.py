"""Text comes out in whole characters, whatever the tokens cut, and joined it is what decoding at once gives."""

import random
from collections.abc import Sequence

import pytest

from hybrid.frontend.detokenizer import REPLACEMENT, Detokenizer
from tests.scripted import EOS, SPECIAL, ByteTokenizer

TEXTS = ["plain", "zwölf Äpfel", "日本語のテキスト", "🦆🦆 two ducks 👨‍👩‍👧‍👦", "mixed é 漢 🎉 end"]


def pieces(token_ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(ByteTokenizer(), skip_special_tokens)
    return [detokenizer.push((token_id,)) for token_id in token_ids]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_become_whole_characters(text: str) -> None:
    out = pieces(text.encode())
    assert "".join(out) == text
    assert all(REPLACEMENT not in piece for piece in out)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(5))
def test_several_tokens_at_once_make_no_difference(text: str, seed: int) -> None:
    rng = random.Random(seed)
    detokenizer, data, out = Detokenizer(ByteTokenizer()), list(text.encode()), ""
    while data:
        count = rng.randint(1, 6)
        out += detokenizer.push(data[:count])
        del data[:count]
    assert out == text


def test_a_character_appears_with_its_last_byte() -> None:
    assert pieces("é🦆".encode()) == ["", "é", "", "", "", "🦆"]


def test_a_character_that_never_ends_is_left_out() -> None:
    assert "".join(pieces("ok🦆".encode()[:-1])) == "ok"


def test_bytes_that_form_no_character_are_replaced_and_what_follows_is_not_lost() -> None:
    tokens = b"a\xff\xffb" + "é".encode()
    assert "".join(pieces(tokens)) == tokens.decode(errors="replace")


def test_endless_broken_bytes_do_not_wait_for_ever() -> None:
    out = "".join(pieces(b"\x80" * 500 + b"end"))
    assert out.endswith("end")
    assert set(out) == {REPLACEMENT, *"end"}


def test_random_bytes_lose_no_good_text() -> None:
    rng = random.Random(0)
    for _ in range(50):
        data = b"".join(
            rng.choice([b"\xf0\x9f", b"\x80", b"\xff", "é".encode(), "漢".encode(), b"x"]) for _ in range(40)
        )
        out = "".join(pieces(data + b"!!!!"))
        assert out == (data + b"!!!!").decode(errors="replace")


def test_special_tokens_are_skipped_or_shown() -> None:
    tokens = [*b"hi", SPECIAL, *b"!", EOS]
    assert "".join(pieces(tokens)) == "hi!"
    assert "".join(pieces(tokens, skip_special_tokens=False)) == "hi<special>!<eos>"


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    first, second = "é".encode()
    assert "".join(pieces([first, SPECIAL, second])) == "é"


class SpaceDropping:
    """As sentencepiece decodes: every token is a word with a space before it, the very first space is dropped."""

    special_token_ids: frozenset[int] = frozenset()

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(f" w{token_id}" for token_id in token_ids)[1:]


def test_spaces_between_words_survive() -> None:
    detokenizer = Detokenizer(SpaceDropping())
    assert [detokenizer.push((i,)) for i in range(3)] == ["w0", " w1", " w2"]


def test_the_prompt_before_it_decides_about_the_first_space() -> None:
    detokenizer = Detokenizer(SpaceDropping(), context=(8, 9))
    assert [detokenizer.push((i,)) for i in range(2)] == [" w0", " w1"]


def test_a_prompt_that_ends_inside_a_character_is_continued() -> None:
    first, second = "é".encode()
    detokenizer = Detokenizer(ByteTokenizer(), context=(*b"caf", first))
    assert detokenizer.push((second,)) == "é"
    assert detokenizer.push(b"!") == "!"
