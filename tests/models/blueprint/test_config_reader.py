"""A configuration's keys are read and checked; what is wrong is named with its value."""

from collections.abc import Callable
from typing import Any

import pytest

from hybrid.models.blueprint.config_reader import ConfigReader

READ: dict[str, Callable[[ConfigReader], Any]] = {
    "integer": lambda config: config.integer("key"),
    "count": lambda config: config.count("key"),
    "number": lambda config: config.number("key"),
    "scaled": lambda config: config.scaled("key", 10),
    "positive": lambda config: config.positive("key"),
    "flag": lambda config: config.flag("key"),
    "one of": lambda config: config.one_of("key", ("a", "b")),
    "entries": lambda config: config.entries("key", length=2),
    "kinds": lambda config: config.kinds("key", {"m": "mamba", "*": "attention"}),
    "numbers": lambda config: config.numbers("key", 2),
    "indices": lambda config: config.indices("key", 3),
    "reader": lambda config: config.reader("key"),
}


@pytest.mark.parametrize(
    ("reader", "value", "result"),
    [
        ("integer", 7, 7),
        ("number", -2, -2.0),
        ("count", 4096, 4096),
        ("scaled", 0.25, 2),
        ("positive", 0.5, 0.5),
        ("flag", False, False),
        ("one of", "b", "b"),
        ("entries", [1, None], [1, None]),
        ("kinds", ["*", "m"], ["attention", "mamba"]),
        ("numbers", [1, 2.5], [1.0, 2.5]),
        ("indices", [2, 0, 2], {0, 2}),
    ],
)
def test_a_value_is_read(reader: str, value: Any, result: Any) -> None:
    assert READ[reader](ConfigReader({"key": value})) == result


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        ("integer", 7.0),
        ("integer", True),
        ("integer", 0),
        ("integer", 2**31),
        ("number", "3"),
        ("number", 10**400),
        ("positive", float("inf")),
        ("count", 4097),
        ("number", float("nan")),
        ("number", 1e39),
        ("positive", 1e-39),
        ("positive", 0),
        ("scaled", 0.01),
        ("scaled", 1e300),
        ("flag", 1),
        ("one of", "c"),
        ("one of", ["a"]),
        ("entries", "ab"),
        ("entries", [1]),
        ("kinds", ["m", "E"]),
        ("kinds", ["m", ["*"]]),
        ("reader", 3),
        ("numbers", [1]),
        ("numbers", "ab"),
        ("indices", ["x"]),
        ("indices", [3]),
        ("indices", [-1]),
        ("indices", [True]),
        ("indices", [[0]]),
        ("indices", 1),
    ],
)
def test_a_wrong_value_is_named(reader: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"config\.key.* got ") as caught:
        READ[reader](ConfigReader({"key": value}))
    assert repr(value[-1] if reader == "kinds" else value)[:200] in str(caught.value)


def test_a_long_value_is_cut_in_the_message() -> None:
    config = ConfigReader({"key": ["a"] * 1000})
    for read in (lambda: config.integer("key"), lambda: config.refuse("key", (), "no")):
        with pytest.raises(ValueError, match=r"\['a', .*\.\.\.") as caught:
            read()
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("reader", READ)
@pytest.mark.parametrize(("data", "words"), [({}, "is missing"), ({"key": None}, "must have a value")])
def test_a_value_that_is_not_there_is_named(reader: str, data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"config\.key {words}"):
        READ[reader](ConfigReader(data))


def test_null_takes_the_default() -> None:
    config = ConfigReader({"key": None})
    assert config.integer("key", 4) == 4
    assert config.flag("key", True)
    assert config.get("key", "x") == "x"
    assert "key" not in config


def test_the_first_spelling_that_is_there_counts() -> None:
    assert ConfigReader({"new": 1, "old": 2}).either("new", "old") == "new"
    assert ConfigReader({"new": None, "old": 2}).either("new", "old") == "old"
    assert ConfigReader({}).either("new", "old") == "new"


def test_what_is_not_supported_is_refused() -> None:
    config = ConfigReader({"off": False, "on": True, "none": None})
    config.refuse("off", (False,), "never")
    config.refuse("none", (False,), "never")
    config.refuse("absent", (False,), "never")
    with pytest.raises(ValueError, match=r"config\.on is True, which is not supported: never"):
        config.refuse("on", (False,), "never")


def test_an_inner_object_says_where_it_is() -> None:
    inner = ConfigReader({"outer": {"key": "x"}}).reader("outer")
    with pytest.raises(ValueError, match=r"config\.outer\.key must be an integer, got 'x'"):
        inner.integer("key")
