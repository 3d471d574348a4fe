"""The drawn world: seeded scenes of coloured shapes, and their pictures. Questions about them: `questions.py`.

Lengths and places are fractions of the picture's side, y grows downwards. What a question may depend on keeps a
margin: shapes never overlap, sizes of a pair differ by half or not at all to the eye, places stay off the borders
between two answers.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw

SceneKind = Literal["single", "pair", "several"]
Rgb = tuple[int, int, int]

SHAPES = ("circle", "square", "triangle", "star")
# Every colour is a range between two corners, so that textbook colours (255, 0, 0) and soft ones both count.
COLOURS: dict[str, tuple[Rgb, Rgb]] = {
    "red": ((215, 45, 45), (255, 0, 0)),
    "orange": ((240, 135, 25), (255, 160, 0)),
    "yellow": ((245, 215, 50), (255, 255, 0)),
    "green": ((30, 130, 50), (0, 220, 0)),
    "blue": ((50, 90, 220), (0, 0, 255)),
    "purple": ((145, 60, 185), (128, 0, 128)),
    "pink": ((255, 130, 180), (250, 180, 205)),
    "black": ((45, 45, 45), (0, 0, 0)),
}
PLACES = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")
SMALL, LARGE = (0.09, 0.13), (0.20, 0.26)  # radii of single shapes
APART = 0.2  # two centres further apart than this along an axis are clearly left of, or above, each other
BIGGER = 1.5  # a radius this many times the other's is clearly bigger
# Corners reach further than a circle of the same area does.
REACH = {"circle": 1.0, "square": 1.22, "triangle": 1.25, "star": 1.25}


@dataclass(frozen=True, slots=True)
class Shape:
    """One drawn shape; `radius` is that of a circle of about its visual size, `turn` is in radians."""

    kind: str
    colour: str
    rgb: Rgb
    x: float
    y: float
    radius: float
    turn: float

    @property
    def reach(self) -> float:
        """Distance from the centre to the outermost point."""
        return self.radius * REACH[self.kind]


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture's content. Only a single shape has a `place` (one of PLACES) and a `size`."""

    kind: SceneKind
    shapes: tuple[Shape, ...]
    background: Rgb
    place: str = ""
    size: str = ""


def random_scene(rng: random.Random, kind: SceneKind | None = None) -> Scene:
    """A scene drawn from the world's distribution; the same state of `rng` gives the same scene."""
    kind = kind or rng.choices(("single", "pair", "several"), (30, 35, 35))[0]
    background = (255, 255, 255)
    if rng.random() < 0.5:
        background = (rng.randint(226, 255), rng.randint(226, 255), rng.randint(226, 255))
    if kind == "single":
        return _single(rng, background)
    if kind == "pair":
        return _pair(rng, background)
    return _several(rng, background)


def left_of(a: Shape, b: Shape) -> bool:
    """Whether a is clearly left of b. Both orders are false when they are about in line."""
    return b.x - a.x >= APART


def above(a: Shape, b: Shape) -> bool:
    """Whether a is clearly above b. Both orders are false when they are about level."""
    return b.y - a.y >= APART


def bigger(a: Shape, b: Shape) -> bool:
    """Whether a is clearly bigger than b. Both orders are false when the sizes are close."""
    return a.radius >= BIGGER * b.radius


def draw(scene: Scene, side: int) -> Image.Image:
    """The scene as an RGB picture of side x side pixels, without smoothing: draw larger and resize for that."""
    image = Image.new("RGB", (side, side), scene.background)
    pen = ImageDraw.Draw(image)
    for shape in scene.shapes:
        x, y, reach = shape.x * side, shape.y * side, shape.reach * side
        if shape.kind == "circle":
            pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=shape.rgb)
        else:
            pen.polygon(_corners(shape.kind, x, y, reach, shape.turn), fill=shape.rgb)
    return image


def _corners(kind: str, x: float, y: float, reach: float, turn: float) -> list[tuple[float, float]]:
    """Corners of a polygon that points upwards when it is not turned; a star alternates outer and inner ones."""
    count, inner, start = {"square": (4, 1.0, math.pi / 4), "triangle": (3, 1.0, 0.0), "star": (10, 0.45, 0.0)}[kind]
    corners = []
    for i in range(count):
        length = reach * (inner if i % 2 and kind == "star" else 1.0)
        angle = start + turn - math.pi / 2 + 2 * math.pi * i / count
        corners.append((x + length * math.cos(angle), y + length * math.sin(angle)))
    return corners


def _shape(rng: random.Random, kind: str, colour: str, x: float, y: float, radius: float) -> Shape:
    first, second = COLOURS[colour]
    mix = rng.random()
    red, green, blue = (round(a + (b - a) * mix) for a, b in zip(first, second, strict=True))
    turn = rng.uniform(-0.2, 0.2) if kind != "star" else rng.uniform(-math.pi, math.pi)
    return Shape(kind, colour, (red, green, blue), x, y, radius, turn)


def _single(rng: random.Random, background: Rgb) -> Scene:
    size = rng.choice(("small", "large"))
    radius = rng.uniform(*(SMALL if size == "small" else LARGE))
    place = rng.randrange(9)
    kind = rng.choice(SHAPES)
    edge = max(radius * REACH[kind] + 0.01, 0.14)  # a centre this far from the border touches it at most
    ranges = ((edge, edge + 0.05), (0.46, 0.54), (0.95 - edge, 1 - edge))
    x, y = rng.uniform(*ranges[place % 3]), rng.uniform(*ranges[place // 3])
    shape = _shape(rng, kind, rng.choice(tuple(COLOURS)), x, y, radius)
    return Scene("single", (shape,), background, PLACES[place], size)


def _pair(rng: random.Random, background: Rgb) -> Scene:
    kinds, colours = rng.sample(SHAPES, 2), rng.sample(tuple(COLOURS), 2)
    while True:
        small = rng.uniform(0.09, 0.14)
        radii = [
            small,
            min(LARGE[1], small * (rng.uniform(BIGGER, 2.4) if rng.random() < 0.8 else rng.uniform(1, 1.15))),
        ]
        rng.shuffle(radii)
        shapes = tuple(
            _shape(rng, kind, colour, *_inside(rng, radius * REACH[kind]), radius)
            for kind, colour, radius in zip(kinds, colours, radii, strict=True)
        )
        a, b = shapes
        clear = any(f(p, q) for f in (left_of, above) for p, q in ((a, b), (b, a)))
        if clear and _separate(a, b):
            return Scene("pair", shapes, background)


def _several(rng: random.Random, background: Rgb) -> Scene:
    count = rng.randint(2, 5)
    kinds = rng.sample(SHAPES, rng.randint(1, 3))
    colours = rng.sample(tuple(COLOURS), rng.randint(2, 4))
    shapes: list[Shape] = []
    tries = 0
    while len(shapes) < count:
        kind, radius = rng.choice(kinds), rng.uniform(0.085, 0.13)
        shape = _shape(rng, kind, rng.choice(colours), *_inside(rng, radius * REACH[kind]), radius)
        if all(_separate(shape, other) for other in shapes):
            shapes.append(shape)
        tries += 1
        if tries % 100 == 0:  # the first ones left no room: begin again
            shapes.clear()
    return Scene("several", tuple(shapes), background)


def _inside(rng: random.Random, reach: float) -> tuple[float, float]:
    return rng.uniform(reach + 0.01, 0.99 - reach), rng.uniform(reach + 0.01, 0.99 - reach)


def _separate(a: Shape, b: Shape) -> bool:
    return math.hypot(a.x - b.x, a.y - b.y) >= a.reach + b.reach + 0.03
