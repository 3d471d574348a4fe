"""The history holds complete turns only, whatever happens to an answer."""

from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hybrid.cli.chat_commands import Leave, run_command
from hybrid.cli.chat_session import ChatSession
from hybrid.frontend.media import MediaPolicy, read_picture
from hybrid.lora_request import LoRARequest
from hybrid.outputs import CompletionOutput, RequestOutput
from hybrid.sampling_params import SamplingParams
from hybrid.scheduler.stats import SchedulerStats


class Parrot:
    """Answers "one two" in two pieces; remembers what it was asked, and which requests were closed early."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.closed = 0
        self.error: str | None = None

    def num_image_tokens(self, picture: Image.Image) -> int:
        return picture.width

    def stats(self) -> SchedulerStats:
        return SchedulerStats(0, 0, 0, 0.0, 0, 0, 0, 0, 0)

    def stream_chat(
        self, messages: Any, params: SamplingParams, *, lora_request: LoRARequest | None = None
    ) -> Generator[RequestOutput, None, None]:
        self.asked.append(messages)
        try:
            for text, last in (("one", False), ("one two", True)):
                reason: Any = None if not last else "error" if self.error else "stop"
                yield RequestOutput(
                    request_id="0",
                    prompt="",
                    prompt_token_ids=(1,),
                    outputs=(CompletionOutput(index=0, text=text, token_ids=(), finish_reason=reason),),
                    finished=last,
                    error=self.error if last else None,
                )
        except GeneratorExit:
            self.closed += 1
            raise


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def session(parrot: Parrot) -> ChatSession:
    return ChatSession(parrot, SamplingParams(), partial(read_picture, policy=MediaPolicy()), "Be kind.")


def test_turns_are_remembered(session: ChatSession, parrot: Parrot) -> None:
    assert list(session.ask("first")) == ["one", " two"]
    assert list(session.ask("second")) == ["one", " two"]
    assert [(m["role"], m["content"]) for m in parrot.asked[-1]] == [
        ("system", "Be kind."),
        ("user", "first"),
        ("assistant", "one two"),
        ("user", "second"),
    ]


def test_an_answer_that_is_stopped_leaves_no_trace(session: ChatSession, parrot: Parrot) -> None:
    session.pictures.append(Image.new("RGB", (2, 2)))
    answer = session.ask("first")
    next(answer)
    answer.close()
    assert parrot.closed == 1
    assert session.messages == [] and len(session.pictures) == 1


def test_an_answer_that_fails_leaves_no_trace(session: ChatSession, parrot: Parrot) -> None:
    parrot.error = "the device is gone"
    with pytest.raises(ValueError, match="the device is gone"):
        list(session.ask("first"))
    assert session.messages == []


def test_pictures_go_with_the_next_question_only(session: ChatSession, parrot: Parrot, tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    Image.new("RGB", (2, 2)).save(path)
    assert run_command(session, f'/image "{path}"') == f"attached {path}: 2 tokens; it goes with your next message"
    list(session.ask("what?"))
    assert [part["type"] for part in parrot.asked[-1][-1]["content"]] == ["image", "text"]
    list(session.ask("and now?"))
    assert parrot.asked[-1][-1]["content"] == "and now?"
    assert [part["type"] for part in parrot.asked[-1][1]["content"]] == ["image", "text"]


def test_urls_are_read_where_the_policy_lets_them(parrot: Parrot, tmp_path: Path) -> None:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (3, 2)).save(tmp_path / name / "p.png")
    read = partial(read_picture, policy=MediaPolicy(allowed_local_path=tmp_path / "inside"))
    session = ChatSession(parrot, SamplingParams(), read)
    assert session.attach((tmp_path / "inside" / "p.png").as_uri()) == 3
    for reference, message in (
        ((tmp_path / "outside" / "p.png").as_uri(), "may not be read"),
        ("http://localhost/p.png", "'localhost' is none of --allowed-media-domains"),
        ("ftp://localhost/p.png", "may not be read"),
        ("data:image/png;base64,AAAA", "is not an image"),
    ):
        with pytest.raises(ValueError, match=message):
            session.attach(reference)
    assert len(session.pictures) == 1


def test_commands_change_the_conversation(session: ChatSession) -> None:
    list(session.ask("first"))
    run_command(session, "/clear")
    assert (session.messages, session.system) == ([], "Be kind.")
    list(session.ask("first"))
    run_command(session, "/system  Be brief. ")
    assert (session.messages, session.system) == ([], "Be brief.")
    run_command(session, "/system")
    assert session.system is None
    assert "/image PATH" in str(run_command(session, "/help"))
    for leave in ("/exit", "/quit"):
        with pytest.raises(Leave):
            run_command(session, leave)
    with pytest.raises(ValueError, match="there is no command '/imagine'"):
        run_command(session, "/imagine x")
