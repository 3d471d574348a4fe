"""A stop string is found wherever the pieces cut it, and nothing that begins one is shown too early."""

import random

import pytest

from hybrid.frontend.stop_strings import StopStrings


def watch(text: str, stops: list[str], size: int = 1, include: bool = False) -> tuple[list[str], str | None]:
    """(what was released after each piece, the stop string found); the end is flushed."""
    watcher, out = StopStrings(stops, include), []
    for start in range(0, len(text), size):
        released = watcher.push(text[start : start + size])
        out.append(released.text)
        if released.stop is not None:
            return out, released.stop
    return [*out, watcher.flush()], None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_it_is_found_across_pieces(size: int) -> None:
    out, stop = watch("one two\n\nUser: three", ["\n\nUser:"], size)
    assert ("".join(out), stop) == ("one two", "\n\nUser:")


def test_what_may_begin_a_stop_string_is_held_back_and_released_when_it_does_not() -> None:
    out, stop = watch("a END b ENX", ["END!"])
    assert out == ["a", " ", "", "", "", "END ", "b", " ", "", "", "ENX", ""]
    assert stop is None


def test_the_end_of_the_text_releases_what_was_held_back() -> None:
    out, stop = watch("wait EN", ["END"])
    assert ("".join(out), stop) == ("wait EN", None)


def test_it_stays_in_the_output_when_wanted() -> None:
    out, stop = watch("one STOP two", ["STOP"], size=100, include=True)
    assert (out, stop) == (["one STOP"], "STOP")


def test_of_several_the_one_that_ends_first_wins() -> None:
    assert watch("xabcd", ["bcd", "ab"], size=100) == (["x"], "ab")
    assert watch("xabcd", ["bc", "abc"], size=100) == (["x"], "abc")


def test_a_string_that_repeats_its_own_beginning_is_found() -> None:
    out, stop = watch("aaab", ["aab"])
    assert ("".join(out), stop) == ("a", "aab")


def test_where_it_may_not_stop_a_stop_string_is_ordinary_text() -> None:
    watcher = StopStrings(["END"])
    assert watcher.push("END ", may_stop=False).text == "END "
    assert watcher.push("EN", may_stop=False).text == ""
    assert watcher.push("D").stop == "END"


def test_random_cuts_agree_with_a_search_of_the_whole_text() -> None:
    rng = random.Random(1)
    for _ in range(500):
        text = "".join(rng.choices("ab", k=rng.randint(0, 20)))
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        out, stop = watch(text, stops, size=rng.randint(1, 5))
        if stop is None:
            assert not any(s in text for s in stops)
            assert "".join(out) == text
        else:
            assert text.startswith("".join(out) + stop)
