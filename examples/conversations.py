"""Conversations about pictures: what the tiny model is trained and evaluated on, as messages and as token ids.

Knows scenes, digits and the chat format; knows nothing of models or of torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image
from tokenizers import Tokenizer

from .digits_data import Digits, draw_digit
from .questions import Question, digit_question, follow_up, scene_question, vary
from .tiny_world import Scene, draw, random_scene

START, END, IMAGE, PAD = "<|im_start|>", "<|im_end|>", "<|image|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, START, END, IMAGE)

# ChatML; a message's content is a string, or a list of text and image parts as in transformers and the OpenAI API.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- elif message['content'] -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] in ['image', 'image_url', 'input_image'] -%}{{- '<|image|>' -}}"
    "{%- elif 'text' in part -%}{{- part['text'] -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a tiny model that looks at pictures.",
    "Answer questions about pictures.",
    "Answer briefly.",
    "Look at the picture and answer in a few words.",
    "You help people to look at pictures. Be brief and exact.",
)
NO_PICTURE = "I need a picture."
SMALL_TALK: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("greeting", ("Hello", "Hello!", "Hi", "Hi!", "Hey!", "Good morning", "Hello there!"), "Hello! Show me a picture."),
    (
        "ability",
        ("What can you do?", "How can you help me?", "What do you know?", "Help", "What are you good at?"),
        "I answer questions about shapes and digits.",
    ),
    ("name", ("Who are you?", "What are you?", "What is your name?"), "I am a tiny model."),
    ("thanks", ("Thanks", "Thank you", "Thanks!", "Thank you!", "Great, thanks"), "You are welcome."),
    ("goodbye", ("Bye", "Goodbye", "Goodbye!", "See you", "Bye bye"), "Goodbye!"),
)
SIDES = (64, 96, 128, 160, 200, 256)  # pixels; people's pictures have any size


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture and what it shows: a scene or a digit."""

    image: Image.Image
    scene: Scene | None = None
    digit: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message, with a picture in it or not, and the assistant's answer."""

    kind: str
    question: str
    answer: str
    picture: Picture | None = None
    picture_last: bool = False
    focus: tuple[float, float] | None = None  # x and y in the latest picture, 0 to 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order; a question is about the latest picture."""

    turns: tuple[Turn, ...]
    system: str | None = None

    def pictures(self) -> list[Picture]:
        """Pictures in reading order, as many as the text has placeholders."""
        return [turn.picture for turn in self.turns if turn.picture is not None]

    def messages(self) -> list[dict[str, Any]]:
        """The chat messages up to the last question, whose answer is left out."""
        messages: list[dict[str, Any]] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns:
            content: str | list[dict[str, str]] = turn.question
            if turn.picture is not None:
                content = [{"type": "image"}, {"type": "text", "text": turn.question}]
                if turn.picture_last:
                    content.reverse()
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages[:-1]


@dataclass(frozen=True, slots=True)
class Answer:
    """Where one answer lies in the token ids: positions start .. end-1, the end-of-message token included."""

    kind: str
    start: int
    end: int
    focus: int | None = None  # position of the image token to look at


@dataclass(slots=True)
class Encoder:
    """Conversations to token ids; pieces of text between special tokens are looked up after their first sight."""

    tokenizer: Tokenizer
    num_image_tokens: int
    _pieces: dict[str, list[int]] = field(default_factory=dict)

    def encode(self, conversation: Conversation) -> tuple[list[int], list[Answer]]:
        """The ids of the whole conversation, every image expanded, and where its answers are."""
        start, end = special_id(self.tokenizer, START), special_id(self.tokenizer, END)
        image = [special_id(self.tokenizer, IMAGE)] * self.num_image_tokens
        newline = self._piece("\n")
        cells = math.isqrt(self.num_image_tokens)
        image_at = 0
        ids: list[int] = []
        answers: list[Answer] = []
        if conversation.system is not None:
            ids += [start, *self._piece("system\n" + conversation.system), end, *newline]
        for turn in conversation.turns:
            if turn.picture is None:
                message = self._piece("user\n" + turn.question)
            elif turn.picture_last:
                message = self._piece("user\n" + turn.question) + image
            else:
                message = self._piece("user\n") + image + self._piece(turn.question)
            if turn.picture is not None:
                image_at = len(ids) + 1 + message.index(image[0])
            ids += [start, *message, end, *newline, start, *self._piece("assistant\n")]
            first = len(ids)
            ids += [*self._piece(turn.answer), end]
            focus = None
            if turn.focus is not None:
                x, y = turn.focus
                focus = image_at + int(y * cells) * cells + int(x * cells)
            answers.append(Answer(turn.kind, first, len(ids), focus))
            ids += newline
        return ids, answers

    def _piece(self, text: str) -> list[int]:
        if text not in self._pieces:
            self._pieces[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self._pieces[text]


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of one of SPECIAL_TOKENS."""
    index = tokenizer.token_to_id(token)
    assert index is not None, token
    return int(index)


def random_conversation(rng: random.Random, digits: Digits) -> Conversation:
    """One training conversation: mostly several turns about one picture, sometimes two pictures or none."""
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
    if rng.random() < 0.04:
        return Conversation(tuple(_small_talk(rng) for _ in range(rng.randint(1, 4))), system)
    turns = [_small_talk(rng)] if rng.random() < 0.08 else []
    count = rng.randint(5, 8)
    if rng.random() < 0.08:
        first = rng.randint(1, count - 2)
        turns += picture_turns(rng, digits, first) + picture_turns(rng, digits, count - first)
    else:
        turns += picture_turns(rng, digits, count)
    if rng.random() < 0.05:
        turns.append(_small_talk(rng, ("thanks", "goodbye", "ability", "name")))
    return Conversation(tuple(turns), system)


def lessons(rng: random.Random, digits: Digits, count: int) -> list[Conversation]:
    """One-question conversations, the first lessons: about `count` of them on one new picture; now and then small
    talk."""
    if rng.random() < 0.03:
        return [Conversation((_small_talk(rng),)) for _ in range(count)]
    turns = picture_turns(rng, digits, count, digit_share=0.15)
    asked = [turn for turn in turns if not turn.kind.startswith("follow")]
    picture = turns[0].picture
    return [
        Conversation(
            (replace(turn, picture=picture, picture_last=rng.random() < 0.1),),
            rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.1 else None,
        )
        for turn in asked
    ]


def picture_turns(
    rng: random.Random, digits: Digits, count: int, digit_share: float = 0.3, warp: bool = True
) -> list[Turn]:
    """`count` questions about one new picture, shown with the first of them; digits are warped for training."""
    side = rng.choice(SIDES)
    questions: list[Question] = []
    if rng.random() < digit_share:
        index = rng.randrange(len(digits))
        digit = int(digits.labels[index])
        picture = Picture(draw_digit(rng, digits.ink[index], side, warp=warp), digit=digit)
        questions = [digit_question(rng, digit) for _ in range(count)]
    else:
        scene = random_scene(rng)
        picture = Picture(draw(scene, side), scene=scene)
        while len(questions) < count:
            follow = follow_up(rng, questions[-1]) if questions and rng.random() < 0.35 else None
            questions.append(follow or scene_question(rng, scene))
    last = rng.random() < 0.1
    turns = [Turn(q.kind, q.text, q.answer, focus=_focus(q, picture.scene)) for q in questions]
    turns[0] = replace(turns[0], picture=picture, picture_last=last)
    return turns


def _focus(question: Question, scene: Scene | None) -> tuple[float, float] | None:
    """Where in the picture the answer is to be read, if that is one place."""
    subject = question.subject
    if subject is None and scene is not None and scene.kind == "single":
        (subject,) = scene.shapes
    return (subject.x, subject.y) if subject is not None else None


def _small_talk(rng: random.Random, kinds: Sequence[str] = ()) -> Turn:
    """A turn that needs no picture; with no kinds given it may also ask about a picture that is not there."""
    if not kinds and rng.random() < 0.4:
        return Turn("no_picture", scene_question(rng, random_scene(rng)).text, NO_PICTURE)
    kind, texts, answer = rng.choice([talk for talk in SMALL_TALK if not kinds or talk[0] in kinds])
    return Turn(kind, vary(rng, rng.choice(texts)), answer)
