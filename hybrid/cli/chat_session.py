"""ChatSession: one conversation as it grows, and a model that answers it. Knows no terminal.

A turn enters the history only when its answer is complete, so an interrupted or refused one leaves it as it was.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

if TYPE_CHECKING:
    from hybrid.lora_request import LoRARequest
    from hybrid.outputs import RequestOutput
    from hybrid.sampling_params import SamplingParams
    from hybrid.scheduler.stats import SchedulerStats


class ChatModel(Protocol):
    """What a session asks of an `LLM`."""

    def num_image_tokens(self, image: Image.Image, /) -> int: ...

    def stream_chat(
        self, messages: Any, sampling_params: "SamplingParams", /, *, lora_request: "LoRARequest | None" = None
    ) -> Generator["RequestOutput", None, None]: ...

    def stats(self) -> "SchedulerStats": ...


class ChatSession:
    """`messages` are complete turns, after the system message where there is one. read: a picture by its path or URL,
    as `frontend.media.read_picture`."""

    def __init__(
        self,
        llm: ChatModel,
        params: "SamplingParams",
        read: Callable[[str], Image.Image],
        system: str | None = None,
        lora_request: "LoRARequest | None" = None,
    ) -> None:
        self._llm = llm
        self._params = params
        self._read = read
        self._lora_request = lora_request
        self.system = system
        self.messages: list[dict[str, Any]] = []
        self.pictures: list[Image.Image] = []  # go with the next question

    def attach(self, reference: str) -> int:
        """Mutates: the picture goes with the next question. Returns the tokens that it costs. Raises ValueError for one
        that cannot be read, or that the model cannot be shown."""
        picture = self._read(reference)
        cost = self._llm.num_image_tokens(picture)
        self.pictures.append(picture)
        return cost

    def clear(self) -> None:
        """Mutates: the conversation starts anew; the system message stays."""
        self.messages.clear()
        self.pictures.clear()

    def set_system(self, text: str) -> None:
        """Mutates: a new system message, or none; the conversation starts anew under it."""
        self.system = text or None
        self.messages.clear()

    def stats(self) -> "SchedulerStats":
        return self._llm.stats()

    def ask(self, question: str) -> Generator[str, None, None]:
        """Mutates when it is exhausted: pieces of the answer as they come. Closing it ends the request.

        Raises ValueError when the question cannot be answered or the answer failed; pictures stay attached then.
        """
        content: object = question
        if self.pictures:
            pictures = [{"type": "image", "image": picture} for picture in self.pictures]
            content = [*pictures, {"type": "text", "text": question}]
        turn = {"role": "user", "content": content}
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        answer, error = "", None
        messages = [*system, *self.messages, turn]
        with closing(self._llm.stream_chat(messages, self._params, lora_request=self._lora_request)) as outputs:
            for output in outputs:
                text, error = output.outputs[0].text, output.error
                if len(text) > len(answer):
                    yield text[len(answer) :]
                    answer = text
        if error is not None:
            raise ValueError(error)
        self.messages += [turn, {"role": "assistant", "content": answer}]
        self.pictures.clear()
