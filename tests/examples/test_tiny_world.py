"""The drawn world: seeded, unambiguous, and put into the chat format that the model is trained on."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

pytest.importorskip("sklearn")

from examples.conversations import Encoder, lessons, random_conversation, special_id
from examples.digits_data import NUM_HELD_OUT, load_split
from examples.questions import PHRASINGS, scene_question
from examples.tiny_world import PLACES, bigger, draw, random_scene
from examples.train_tiny import train_tokenizer


def test_a_seed_is_a_picture() -> None:
    first, again, other = (draw(random_scene(random.Random(seed)), 96) for seed in (3, 3, 4))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert first.size == (96, 96)


def test_shapes_are_apart_and_inside() -> None:
    for seed in range(300):
        shapes = random_scene(random.Random(seed)).shapes
        for i, a in enumerate(shapes):
            assert a.reach <= a.x <= 1 - a.reach
            assert a.reach <= a.y <= 1 - a.reach
            for b in shapes[:i]:
                assert math.hypot(a.x - b.x, a.y - b.y) > a.reach + b.reach


def test_a_shape_is_drawn_in_its_colour_where_it_is() -> None:
    for seed in range(60):
        scene = random_scene(random.Random(seed))
        pixels = np.asarray(draw(scene, 128))
        for shape in scene.shapes:
            assert tuple(pixels[round(shape.y * 128), round(shape.x * 128)]) == shape.rgb


def test_answers_are_right() -> None:
    rng = random.Random(7)
    seen = set()
    for _ in range(3000):
        scene = random_scene(rng)
        question = scene_question(rng, scene)
        text, answer, shapes = question.text.lower(), question.answer, scene.shapes
        seen.add(question.kind)
        if question.kind == "place":
            column, row = ((v > 0.4) + (v > 0.6) for v in (shapes[0].x, shapes[0].y))
            assert answer == PLACES[3 * row + column]
        elif question.kind == "bigger":
            largest = max(shapes, key=lambda shape: shape.radius)
            assert answer == largest.kind
            assert all(shape is largest or bigger(largest, shape) for shape in shapes)
        elif question.kind == "shape_at":
            (at,) = [at for at in ("left", "right", "top", "bottom") if at in text]
            axis, sign = {"left": ("x", 1), "right": ("x", -1), "top": ("y", 1), "bottom": ("y", -1)}[at]
            first, second = sorted(shapes, key=lambda shape: sign * float(getattr(shape, axis)))
            assert answer == first.kind
            assert sign * (getattr(second, axis) - getattr(first, axis)) > 0.15
        elif question.kind == "colour_of":
            (named,) = [shape for shape in shapes if shape.kind in text]
            assert answer == named.colour
        elif question.kind == "shape_of":
            (named,) = [shape for shape in shapes if shape.colour in text]
            assert answer == named.kind
        elif question.kind == "count":
            assert int(answer) == len(shapes)
        elif question.kind == "describe":
            assert {shapes[0].kind, shapes[0].colour} < set(answer.split())
    assert seen == set(PHRASINGS) - {"digit", "follow_colour", "follow_shape"}


def test_an_answer_is_read_where_its_shape_is() -> None:
    """Training is told which image token to look at: the one in whose cell the shape's centre lies."""
    tokenizer = train_tokenizer(0, num_conversations=200)
    encoder = Encoder(tokenizer, 16)
    digits, _ = load_split()
    rng = random.Random(3)
    places = 0
    for _ in range(200):
        for conversation in lessons(rng, digits, 3):
            ids, (answer,) = encoder.encode(conversation)
            (turn,) = conversation.turns
            if turn.focus is None:
                assert answer.focus is None
                continue
            places += 1
            assert answer.focus is not None
            image = special_id(tokenizer, "<|image|>")
            assert ids[answer.focus] == image
            x, y = turn.focus
            assert answer.focus - ids.index(image) == 4 * int(4 * y) + int(4 * x)
    assert places > 200


def test_the_digits_are_split_once() -> None:
    train, held_out = load_split()
    assert (len(train), len(held_out)) == (1797 - NUM_HELD_OUT, NUM_HELD_OUT)
    assert set(held_out.labels.tolist()) == set(range(10))
    shared = {ink.tobytes() for ink in train.ink} & {ink.tobytes() for ink in held_out.ink}
    assert not shared


def test_training_text_is_the_chat_template() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from examples.conversations import CHAT_TEMPLATE, IMAGE
    from examples.train_tiny import train_tokenizer

    tokenizer = train_tokenizer(seed=1, num_conversations=200)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE)
    encoder = Encoder(tokenizer, num_image_tokens=3)
    digits, _ = load_split()
    rng = random.Random(11)
    for _ in range(100):
        conversation = random_conversation(rng, digits)
        ids, answers = encoder.encode(conversation)
        prompt = fast.apply_chat_template(conversation.messages(), add_generation_prompt=True, tokenize=False)
        start, end = answers[-1].start, answers[-1].end
        assert fast(prompt.replace(IMAGE, IMAGE * 3), add_special_tokens=False)["input_ids"] == ids[:start]
        assert tokenizer.decode(ids[start:end]) == conversation.turns[-1].answer
    text = "naïve – 中文 \t 🦀\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
