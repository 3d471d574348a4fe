"""Questions about a scene or a digit, with their short answers. Knows what a picture shows, not how it is drawn.

A question is only asked where its answer is beyond doubt: a size is compared when sizes differ clearly, "the circle"
is said when there is one circle.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .tiny_world import COLOURS, SHAPES, Scene, Shape, above, bigger, left_of


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its answer; `kind` groups questions in the evaluation, `subject` is the shape it is about."""

    kind: str
    text: str
    answer: str
    subject: Shape | None = None


PHRASINGS: dict[str, tuple[str, ...]] = {
    "shape": ("Which shape is this?", "What shape is it?", "What shape do you see?", "Name the shape."),
    "colour": ("What colour is it?", "Which colour does the shape have?", "What is its colour?", "Name the colour."),
    "size": ("Is it small or large?", "How big is it?", "Is the shape large or small?", "What size is it?"),
    "place": ("Where is it?", "Where is the shape?", "In which part of the picture is it?", "What is its position?"),
    "describe": ("What do you see?", "Describe the picture.", "What is in the picture?", "What is this?"),
    "is_colour": ("Is it {colour}?", "Is the shape {colour}?", "Is this {colour}?"),
    "is_shape": ("Is it a {shape}?", "Is this a {shape}?", "Is the shape a {shape}?"),
    "colour_of": (
        "What colour is the {shape}?",
        "Which colour does the {shape} have?",
        "What is the colour of the {shape}?",
        "Colour of the {shape}?",
    ),
    "shape_of": ("Which shape is {colour}?", "What shape is {colour}?", "What is the {colour} shape?"),
    "bigger": ("Which shape is bigger?", "Which one is larger?", "Which is bigger, the {a} or the {b}?"),
    "smaller": ("Which shape is smaller?", "Which one is smaller?", "Which is smaller, the {a} or the {b}?"),
    "is_bigger": ("Is the {a} bigger than the {b}?", "Is the {a} larger than the {b}?"),
    "is_left": ("Is the {a} left of the {b}?", "Is the {a} to the left of the {b}?"),
    "is_right": ("Is the {a} right of the {b}?", "Is the {a} to the right of the {b}?"),
    "is_above": ("Is the {a} above the {b}?", "Is the {a} over the {b}?"),
    "is_below": ("Is the {a} below the {b}?", "Is the {a} under the {b}?"),
    "shape_at": ("Which shape is {at}?", "What shape is {at}?", "What is {at}?"),
    "colour_at": ("What colour is the shape {at}?", "Which colour is {at}?"),
    "count": (
        "How many shapes are there?",
        "How many shapes do you see?",
        "Count the shapes.",
        "How many shapes are in the picture?",
    ),
    "count_shape": ("How many {shape}s are there?", "How many {shape}s do you see?", "Count the {shape}s."),
    "count_colour": (
        "How many {colour} shapes are there?",
        "How many shapes are {colour}?",
        "Count the {colour} shapes.",
    ),
    "has_shape": ("Is there a {shape}?", "Do you see a {shape}?", "Is there a {shape} in the picture?"),
    "has_both": ("Is there a {colour} {shape}?", "Do you see a {colour} {shape}?"),
    "follow_colour": ("And its colour?", "And what colour is it?", "What is its colour?", "And which colour?"),
    "follow_shape": ("And its shape?", "And what shape is it?", "What is its shape?", "And which shape?"),
    "digit": (
        "Which digit is this?",
        "What digit is it?",
        "Which digit do you see?",
        "Which number is this?",
        "Read the digit.",
        "What number do you see?",
    ),
    "is_digit": ("Is this a {digit}?", "Is it a {digit}?", "Is the digit a {digit}?"),
    "even": ("Is the digit even?", "Is this number even?", "Is it an even number?"),
    "odd": ("Is the digit odd?", "Is this number odd?", "Is it an odd number?"),
    "above_five": ("Is it larger than five?", "Is the digit larger than five?", "Is this number larger than five?"),
}
# What is asked about a single shape; what takes longer to learn comes more often.
SINGLE_KINDS = ("shape", "colour", "size", "describe", "count", *("place",) * 3, *("is_colour", "is_shape") * 2)
WHERE = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"}


def ask(rng: random.Random, kind: str, answer: str, subject: Shape | None = None, **names: str) -> Question:
    """The question of this kind in one of its phrasings, spelling and case varied as people do."""
    text = rng.choice(PHRASINGS[kind]).format(**names).replace(" a orange", " an orange")
    return Question(kind, vary(rng, text), answer, subject)


def vary(rng: random.Random, text: str) -> str:
    """Another way of typing the text: American spelling, lower or upper case, no mark at the end."""
    if rng.random() < 0.4:
        text = text.replace("olour", "olor")
    case = rng.random()
    text = text.lower() if case < 0.25 else text.upper() if case < 0.32 else text
    return text.rstrip("?.") if rng.random() < 0.2 else text


def scene_question(rng: random.Random, scene: Scene) -> Question:
    """One random question that this scene answers without doubt."""
    if scene.kind == "single":
        return _about_single(rng, scene)
    if scene.kind == "pair" and rng.random() < 0.75:
        return _about_pair(rng, scene)
    return _about_several(rng, scene)


def follow_up(rng: random.Random, previous: Question) -> Question | None:
    """A question that leans on the previous one's subject, or None where there is none."""
    if previous.subject is None:
        return None
    if previous.answer == previous.subject.colour:
        return ask(rng, "follow_shape", previous.subject.kind, previous.subject)
    return ask(rng, "follow_colour", previous.subject.colour, previous.subject)


def digit_question(rng: random.Random, digit: int) -> Question:
    """One random question about a picture of this digit."""
    kind = rng.choices(("digit", "is_digit", "even", "odd", "above_five", "describe"), (50, 15, 10, 10, 10, 5))[0]
    if kind == "digit":
        return ask(rng, kind, str(digit))
    if kind == "describe":
        return ask(rng, kind, f"the digit {digit}")
    if kind == "is_digit":
        asked = digit if rng.random() < 0.5 else rng.choice([d for d in range(10) if d != digit])
        return ask(rng, kind, _yes(asked == digit), digit=str(asked))
    return ask(rng, kind, _yes({"even": digit % 2 == 0, "odd": digit % 2 == 1, "above_five": digit > 5}[kind]))


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"


def _about_single(rng: random.Random, scene: Scene) -> Question:
    (shape,) = scene.shapes
    kind = rng.choice(SINGLE_KINDS)
    if kind == "is_colour":
        colour = shape.colour if rng.random() < 0.5 else _other(rng, tuple(COLOURS), shape.colour)
        return ask(rng, kind, _yes(colour == shape.colour), colour=colour)
    if kind == "is_shape":
        asked = shape.kind if rng.random() < 0.5 else _other(rng, SHAPES, shape.kind)
        return ask(rng, kind, _yes(asked == shape.kind), shape=asked)
    answer = {
        "shape": shape.kind,
        "colour": shape.colour,
        "size": scene.size,
        "place": scene.place,
        "describe": f"a {scene.size} {shape.colour} {shape.kind}",
        "count": "1",
    }[kind]
    return ask(rng, kind, answer, shape if kind in ("shape", "colour") else None)


def _about_pair(rng: random.Random, scene: Scene) -> Question:
    a, b = rng.sample(scene.shapes, 2)
    kinds: list[str] = []
    if bigger(a, b) or bigger(b, a):
        kinds += ["bigger", "smaller", "is_bigger"]
    if left_of(a, b) or left_of(b, a):
        kinds += ["is_left", "is_right", "at_x", "at_x"]
    if above(a, b) or above(b, a):
        kinds += ["is_above", "is_below", "at_y", "at_y"]
    kind = rng.choice(kinds)
    if kind in ("bigger", "smaller"):
        subject = a if bigger(a, b) == (kind == "bigger") else b
        return ask(rng, kind, subject.kind, subject, a=a.kind, b=b.kind)
    if kind.startswith("is_"):
        truth = {
            "is_bigger": bigger(a, b),
            "is_left": left_of(a, b),
            "is_right": left_of(b, a),
            "is_above": above(a, b),
            "is_below": above(b, a),
        }[kind]
        return ask(rng, kind, _yes(truth), a=a.kind, b=b.kind)
    if kind == "at_x":
        at = "left" if left_of(a, b) else "right"
    else:
        at = "top" if above(a, b) else "bottom"
    if rng.random() < 0.5:
        return ask(rng, "shape_at", a.kind, a, at=WHERE[at])
    return ask(rng, "colour_at", a.colour, a, at=WHERE[at])


def _about_several(rng: random.Random, scene: Scene) -> Question:
    shapes = scene.shapes
    lone_kinds = [s for s in shapes if sum(o.kind == s.kind for o in shapes) == 1]
    lone_colours = [s for s in shapes if sum(o.colour == s.colour for o in shapes) == 1]
    kinds = ["count", "count_shape", "count_colour", "has_shape", "has_both"]
    kinds += ["colour_of"] * 3 * bool(lone_kinds) + ["shape_of"] * 3 * bool(lone_colours)
    kind = rng.choice(kinds)
    if kind == "count":
        return ask(rng, kind, str(len(shapes)))
    if kind == "colour_of":
        shape = rng.choice(lone_kinds)
        return ask(rng, kind, shape.colour, shape, shape=shape.kind)
    if kind == "shape_of":
        shape = rng.choice(lone_colours)
        return ask(rng, kind, shape.kind, shape, colour=shape.colour)
    present = rng.choice(shapes)
    if kind == "count_shape":
        asked = present.kind if rng.random() < 0.85 else rng.choice(SHAPES)
        return ask(rng, kind, str(sum(s.kind == asked for s in shapes)), shape=asked)
    if kind == "count_colour":
        asked = present.colour if rng.random() < 0.85 else rng.choice(tuple(COLOURS))
        return ask(rng, kind, str(sum(s.colour == asked for s in shapes)), colour=asked)
    if kind == "has_shape":
        absent = [k for k in SHAPES if all(s.kind != k for s in shapes)]
        asked = rng.choice(absent) if absent and rng.random() < 0.5 else present.kind
        return ask(rng, kind, _yes(asked not in absent), shape=asked)
    colour, asked = present.colour, present.kind
    if rng.random() < 0.5:  # change one of the two, preferably to something that is there in another combination
        colour = rng.choice(shapes).colour if rng.random() < 0.6 else rng.choice(tuple(COLOURS))
        asked = rng.choice(shapes).kind if rng.random() < 0.6 else rng.choice(SHAPES)
    truth = any(s.colour == colour and s.kind == asked for s in shapes)
    return ask(rng, kind, _yes(truth), colour=colour, shape=asked)


def _other(rng: random.Random, names: tuple[str, ...], not_this: str) -> str:
    return rng.choice([name for name in names if name != not_this])
