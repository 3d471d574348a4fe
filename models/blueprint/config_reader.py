"""ConfigReader: the keys of a `config.json`, read once each, checked, with errors that name the key and the value.

Knows kinds of values; knows no architecture.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

MAX_SIZE = 2**31 - 1  # of anything that has a size
MAX_COUNT = 4096  # of anything that a blueprint holds one by one: layers, experts
MAX_NUMBER = float.fromhex("0x1.fffffep127")  # the largest float32: numbers meet tensors of it
SHOWN = 200  # characters of a value in a message


def shown(value: Any) -> str:
    """The value as a message names it: not longer than a sentence."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def one_line(text: object) -> str:
    """A name out of a file, or what a library says, as part of a sentence: printable, and not longer than one."""
    words = " ".join(str(text).split())
    plain = words if words.isprintable() else repr(words)[1:-1]
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}..."


def as_float(value: object) -> float | None:
    """A JSON number, infinities included; None for NaN, for more than a float holds, and for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None


class ConfigReader:
    """A JSON object. Every reader raises ValueError naming the key and the value; a key that is `null` is absent."""

    def __init__(self, data: Mapping[str, Any], where: str = "config") -> None:
        self._data = data
        self._where = where

    @property
    def where(self) -> str:
        """What errors call the object."""
        return self._where

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigReader":
        """The same object, with values for keys that are absent; a key that is there stays, be it null."""
        return ConfigReader({**defaults, **self._data}, self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def is_null(self, key: str) -> bool:
        """Whether the key is there and says that there is no such thing, where absence may mean a default."""
        return key in self._data and self._data[key] is None

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is; `default` where the key is absent."""
        value = self._data.get(key)
        return default if value is None else value

    def require(self, key: str) -> Any:
        """The value as it is."""
        if key not in self._data:
            raise ValueError(f"{self._where}.{key} is missing")
        if self._data[key] is None:
            raise ValueError(f"{self._where}.{key} must have a value, got None")
        return self._data[key]

    def either(self, *keys: str) -> str:
        """The first of several spellings of a key that is there; the first of all where none is."""
        return next((key for key in keys if key in self), keys[0])

    def integer(self, key: str, default: int | None = None, at_least: int = 1, at_most: int = MAX_SIZE) -> int:
        """An integer; required where there is no default."""
        value = self.require(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, value, "an integer")
        if not at_least <= value <= at_most:
            raise self.error(key, value, f"between {at_least} and {at_most}")
        return value

    def count(self, key: str, default: int | None = None, at_least: int = 1) -> int:
        """An integer that says how many entries a blueprint has of something, so that none is too long to be made."""
        return self.integer(key, default, at_least, MAX_COUNT)

    def number(self, key: str, default: float | None = None) -> float:
        """A number that is finite in float32; required where there is no default."""
        number = as_float(self.require(key) if default is None else self.get(key, default))
        if number is None or abs(number) > MAX_NUMBER:
            raise self.error(key, self.get(key), "a number that float32 holds")
        return number

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0 that is finite in float32, and so is its inverse; required where there is no default."""
        value = self.number(key, default)
        if value < 1 / MAX_NUMBER:
            raise self.error(key, value, "above 0" if value <= 0 else f"at least {1 / MAX_NUMBER:.1e}")
        return value

    def scaled(self, key: str, size: int, default: float | None = None) -> int:
        """A size times the positive number under a key (required where there is no default), rounded down."""
        factor = self.positive(key, default)
        if not 1 <= factor * size <= MAX_SIZE:
            raise self.error(key, factor, f"such that {size} times it is between 1 and {MAX_SIZE}")
        return int(factor * size)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; required where there is no default."""
        value = self.require(key) if default is None else self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def one_of(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """One of the strings that are supported."""
        value = self.require(key) if default is None else self.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, value, f"one of {', '.join(allowed)}")
        return value

    def entries(self, key: str, length: int | None = None, default: list[Any] | None = None) -> list[Any]:
        """A list, of `length` entries where given; required where there is no default."""
        value = self.require(key) if default is None else self.get(key, default)
        if not isinstance(value, list | tuple):
            raise self.error(key, value, "a list")
        if length is not None and len(value) != length:
            raise self.error(key, value, f"a list of {length} entries")
        return list(value)

    def kinds(self, key: str, names: Mapping[str, str], length: int | None = None) -> list[str]:
        """A list of names, each of which must be known; `names` maps a spelling to the name that the caller uses."""
        spelled = self.entries(key, length)
        for index, name in enumerate(spelled):
            if not isinstance(name, str) or name not in names:
                raise self.error(f"{key}[{index}]", name, f"one of {', '.join(names)}")
        return [names[name] for name in spelled]

    def numbers(self, key: str, length: int, default: float | None = None) -> list[float]:
        """A list of numbers as `number` reads them; `default`: of each, where the key is absent."""
        values = self.entries(key, length, None if default is None else [default] * length)
        return [ConfigReader({f"{key}[{i}]": v}, self._where).number(f"{key}[{i}]") for i, v in enumerate(values)]

    def indices(self, key: str, below: int, default: Collection[int] | None = None) -> set[int]:
        """A list of integers from 0 to `below` - 1, such as layers; required where there is no default."""
        values = self.entries(key, None, None if default is None else list(default))
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
                raise self.error(key, values, f"a list of integers from 0 to {below - 1}")
        return set(values)

    def reader(self, key: str) -> "ConfigReader":
        """The object under a key; required."""
        value = self.require(key)
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        return ConfigReader(value, f"{self._where}.{key}")

    def refuse(self, key: str, unless: Collection[Any], why: str) -> None:
        """Raise for a value that is present and not among `unless`: what is not supported is never guessed."""
        value = self._data.get(key)
        if value is not None and value not in unless:
            raise ValueError(f"{self._where}.{key} is {shown(value)}, which is not supported: {why}")

    def multiple(self, key: str, value: int, divisor_name: str, divisor: int) -> int:
        """`value`, which must be a multiple of another."""
        if value % divisor:
            raise self.error(key, value, f"a multiple of {divisor_name} ({divisor})")
        return value

    def error(self, key: str, value: Any, expected: str) -> ValueError:
        """The sentence for a value that is not what was expected."""
        return ValueError(f"{self._where}.{key} must be {expected}, got {shown(value)}")
