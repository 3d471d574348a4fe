"""Questions about a scene or a digit, with their short answers. Knows what a picture shows, not how it is drawn.

A question is only asked where its answer is beyond doubt: a size is compared when sizes differ clearly, "the circle"
is said when there is one circle.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .tiny_world import Scene, Shape, above, bigger, left_of


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
    "colour_of": (
        "What colour is the {shape}?",
        "Which colour does the {shape} have?",
        "What is the colour of the {shape}?",
        "Colour of the {shape}?",
    ),
    "shape_of": ("Which shape is {colour}?", "What shape is {colour}?", "What is the {colour} shape?"),
    "bigger": ("Which shape is bigger?", "Which one is larger?", "Which is bigger, the {a} or the {b}?"),
    "smaller": ("Which shape is smaller?", "Which one is smaller?", "Which is smaller, the {a} or the {b}?"),
    "shape_at": ("Which shape is {at}?", "What shape is {at}?", "What is {at}?"),
    "colour_at": ("What colour is the shape {at}?", "Which colour is {at}?"),
    "count": (
        "How many shapes are there?",
        "How many shapes do you see?",
        "Count the shapes.",
        "How many shapes are in the picture?",
    ),
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
}
# What is asked about a single shape; what takes longer to learn comes more often.
SINGLE_KINDS = ("shape", "colour", "size", "place", "place", "place", "describe", "count")
WHERE = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"}


def ask(rng: random.Random, kind: str, answer: str, subject: Shape | None = None, **names: str) -> Question:
    """The question of this kind in one of its phrasings, spelling and case varied as people do."""
    text = rng.choice(PHRASINGS[kind]).format(**names)
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
    if rng.random() < 0.1:
        return ask(rng, "describe", f"the digit {digit}")
    return ask(rng, "digit", str(digit))


def _about_single(rng: random.Random, scene: Scene) -> Question:
    (shape,) = scene.shapes
    kind = rng.choice(SINGLE_KINDS)
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
        kinds += ["bigger", "smaller"]
    if left_of(a, b) or left_of(b, a):
        kinds.append("at_x")
    if above(a, b) or above(b, a):
        kinds.append("at_y")
    kind = rng.choice(kinds)
    if kind in ("bigger", "smaller"):
        subject = a if bigger(a, b) == (kind == "bigger") else b
        return ask(rng, kind, subject.kind, subject, a=a.kind, b=b.kind)
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
    kinds = ["count"] * 2 + ["colour_of"] * 3 * bool(lone_kinds) + ["shape_of"] * 3 * bool(lone_colours)
    kind = rng.choice(kinds)
    if kind == "count":
        return ask(rng, kind, str(len(shapes)))
    if kind == "colour_of":
        shape = rng.choice(lone_kinds)
        return ask(rng, kind, shape.colour, shape, shape=shape.kind)
    shape = rng.choice(lone_colours)
    return ask(rng, "shape_of", shape.kind, shape, colour=shape.colour)
