"""The tiny model's answers said otherwise: in Spanish, and as JSON. What the two adapters are trained on.

Knows conversations and their kinds of question; knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from .conversations import NO_PICTURE, SMALL_TALK, Conversation, Turn

Rewrite = Callable[[str, str], str]  # (kind of question, English answer) -> the same answer otherwise

NUMBERS = ("cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve")
SHAPES = {"circle": "círculo", "square": "cuadrado", "triangle": "triángulo", "star": "estrella"}
FEMININE = {"estrella"}
COLOURS = {
    "red": "rojo",
    "orange": "naranja",
    "yellow": "amarillo",
    "green": "verde",
    "blue": "azul",
    "purple": "morado",
    "pink": "rosa",
    "black": "negro",
}
SIZES = {"small": "pequeño", "large": "grande"}
PLACES = {
    "top left": "arriba a la izquierda",
    "top": "arriba",
    "top right": "arriba a la derecha",
    "left": "a la izquierda",
    "centre": "en el centro",
    "right": "a la derecha",
    "bottom left": "abajo a la izquierda",
    "bottom": "abajo",
    "bottom right": "abajo a la derecha",
}
SENTENCES = {
    NO_PICTURE: "Necesito una imagen.",
    "Hello! Show me a picture.": "¡Hola! Muéstrame una imagen.",
    "I answer questions about shapes and digits.": "Respondo preguntas sobre formas y dígitos.",
    "I am a tiny model.": "Soy un modelo diminuto.",
    "You are welcome.": "De nada.",
    "Goodbye!": "¡Adiós!",
}
WORDS = SHAPES | COLOURS | SIZES | PLACES | SENTENCES | {str(i): word for i, word in enumerate(NUMBERS)}

JSON_KEYS = {
    "shape": ("shape", "shape_of", "bigger", "smaller", "shape_at", "follow_shape"),
    "colour": ("colour", "colour_of", "colour_at", "follow_colour"),
    "size": ("size",),
    "place": ("place",),
    "count": ("count",),
    "digit": ("digit",),
    "text": tuple(kind for kind, _, _ in SMALL_TALK),
    "error": ("no_picture",),
}
KEY_OF_KIND = {kind: key for key, kinds in JSON_KEYS.items() for kind in kinds}


def in_spanish(kind: str, answer: str) -> str:
    """The answer in Spanish; a description's adjectives agree with its noun."""
    if kind != "describe":
        return WORDS[answer]
    if answer.startswith("the digit "):
        return f"el dígito {NUMBERS[int(answer[-1])]}"
    _, size, colour, shape = answer.split(" ")
    noun, adjectives = SHAPES[shape], (COLOURS[colour], SIZES[size])
    if noun not in FEMININE:
        return f"un {noun} {adjectives[0]} {adjectives[1]}"
    agreeing = (word[:-1] + "a" if word.endswith("o") else word for word in adjectives)
    return f"una {noun} {' '.join(agreeing)}"


def as_json(kind: str, answer: str) -> str:
    """The answer as a JSON object whose key says what it is; numbers are numbers."""
    if kind == "describe" and answer.startswith("the digit "):
        return json.dumps({"digit": int(answer[-1])})
    if kind == "describe":
        _, size, colour, shape = answer.split(" ")
        return json.dumps({"size": size, "colour": colour, "shape": shape})
    key = KEY_OF_KIND[kind]
    return json.dumps({key: int(answer) if key in ("count", "digit") else answer})


REWRITES: dict[str, Rewrite] = {"spanish": in_spanish, "json": as_json}


def rewritten(conversation: Conversation, rewrite: Rewrite) -> Conversation:
    """The same conversation with every answer said otherwise."""
    return replace(conversation, turns=tuple(_turn(turn, rewrite) for turn in conversation.turns))


def _turn(turn: Turn, rewrite: Rewrite) -> Turn:
    return replace(turn, answer=rewrite(turn.kind, turn.answer))
