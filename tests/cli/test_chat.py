"""`hybrid chat` as people meet it: a real process, with a pipe, a question on the command line, or a terminal."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from hybrid.checkpoints import find_checkpoint
from hybrid.cli import app

HYBRID = [sys.executable, "-m", "hybrid"]
QUIET = {"OMP_NUM_THREADS": "1", "TERM": "dumb", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
PATIENCE = 60.0  # seconds, on a busy machine


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HYBRID, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "a red square.png"
    Image.new("RGB", (64, 64), "red").save(path)
    return str(path)


# --- one answer, and pipes ---------------------------------------------------------------------------------------


def test_one_question_gets_one_answer(picture: str) -> None:
    done = run("chat", "--image", picture, "--prompt", "What color is it?", "--memory", "32MiB")
    assert done.returncode == 0
    assert re.fullmatch(r"attached .*a red square\.png: \d+ tokens; it goes with your next message\n", done.stderr)
    assert done.stdout.strip() and done.stdout.count("\n") == 1


def test_every_line_of_a_pipe_gets_an_answer_and_nothing_else_goes_to_stdout(picture: str) -> None:
    lines = ["Hello", "", f"/image {picture}", "What is this?", "/system Be brief.", "Who are you?", "/stats", "Bye"]
    done = run("chat", stdin="\n".join(lines))
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    for said in ("attached", "new system message", "recurrent state", "prompt tokens came from the prefix cache"):
        assert said in done.stderr


def test_a_pipe_goes_on_after_what_fails(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    lines = [f"/image {tmp_path / 'text.png'}", "/image /no/such/file.png", "/image", "/fly", "/clear now", "x" * 9000]
    done = run("chat", stdin="\n".join([*lines, "Hello", "/exit", "never read"]))
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1
    complaints = done.stderr.splitlines()
    for complaint, expected in zip(
        complaints,
        (
            "is not an image in a supported format",
            "'/no/such/file.png' does not exist",
            "/image needs the path of a picture",
            "there is no command '/fly'; /help lists them",
            "/clear takes nothing after it, got 'now'",
            "more than the 2047 that max_model_len 2048 leaves room for",
        ),
        strict=True,
    ):
        assert expected in complaint


def test_bytes_that_are_no_text_do_not_stop_a_pipe() -> None:
    done = subprocess.run(
        [*HYBRID, "chat", "--max-tokens", "5"],
        input=b"what is \xff\xfe this?\nHello\n",
        capture_output=True,
        env={**os.environ, **QUIET, "PYTHONUTF8": "1"},
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "no-such-model"), 2, "neither a folder nor a bundled checkpoint"),
        (("no-such-model",), 2, "model 'no-such-model' is neither a folder nor a bundled checkpoint"),
        (("tiny", "--model", "small"), 2, "the model is named twice: 'tiny' and --model 'small'"),
        (("--image", "/no/such.png"), 2, "'/no/such.png' does not exist"),
        (("--image", "http://example.com/a.png"), 2, "'example.com' is none of --allowed-media-domains"),
        (("--image", "http://localhost/", "--allowed-media-domains", "localhost"), 2, "lead to a public address"),
        (("--image", "file:///etc/hostname", "--allowed-local-media-path", "/usr"), 2, "may not be read"),
        (("--allowed-local-media-path", "/no/such"), 2, "allowed_local_path '/no/such' is not a folder"),
        (("--temperature", "nan"), 2, "temperature must be finite"),
        (("--max-tokens", "0"), 2, "max_tokens must be at least 1"),
        (("--memory", "much"), 2, "memory must be a number of bytes"),
        (("--threads", "0"), 2, "num_threads must be an integer of at least 1, got 0"),
        (("--memory", "100"), 2, "memory of 100 bytes does not hold one request"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: Sequence[str], code: int, message: str) -> None:
    done = CliRunner().invoke(app, ["chat", "--prompt", "Hello", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    process = subprocess.Popen(
        [*HYBRID, "chat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **QUIET},
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write("Hello\n")
    process.stdin.flush()
    assert process.stdout.readline().strip()
    process.stdout.close()
    process.stdin.write("Hello\n" * 3)
    process.stdin.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE) == 1


def said(stderr: str) -> str:
    """Without the progress bar that a slow machine shows."""
    return "\n".join(line for line in stderr.splitlines() if line and not line.startswith("requests:"))


def test_generate_leaves_quietly_too() -> None:
    process = subprocess.Popen(
        [*HYBRID, "generate", "Hello", "--max-tokens", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **QUIET, "PYTHONUNBUFFERED": ""},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert said(process.stderr.read()) == ""
    process.stderr.close()
    assert process.wait(PATIENCE) == 1


@pytest.mark.parametrize("arguments", [["chat", "--prompt", "Hello"], ["generate", "Hello"]])
def test_a_full_disk_is_one_sentence(arguments: Sequence[str]) -> None:
    command = [*HYBRID, *arguments, "--memory", "32MiB", "--max-tokens", "2"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, **QUIET}, timeout=PATIENCE
        )
    assert done.returncode == 1
    message = said(done.stderr)
    assert message.startswith("the answer") and message.endswith("cannot be written: No space left on device")


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_a_closed_standard_input_is_an_empty_one(command: str) -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *HYBRID, command, "--memory", "32MiB"]
    done = subprocess.run(shell, capture_output=True, text=True, env={**os.environ, **QUIET}, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_generate_continues_a_batch() -> None:
    done = run("generate", "Hello", "What is", "--max-tokens", "4", "--json")
    assert done.returncode == 0
    assert [line[:11] for line in done.stdout.splitlines()] == ['{"prompt": '] * 2
    piped = CliRunner().invoke(app, ["generate", "--chat", "--max-tokens", "4"], input="Hello\nBye\n")
    assert (piped.exit_code, piped.stdout.count("\n")) == (0, 2)
    bad = CliRunner().invoke(app, ["generate", "ok", ""])
    assert (bad.exit_code, bad.stdout, bad.stderr) == (1, "", "prompt 1: the prompt is empty\n")


def test_generate_samples_as_the_api_does() -> None:
    options = ["--temperature", "1", "--top-k", "1", "--top-p", "0.9", "--min-p", "0.1", "--memory", "32MiB"]
    options += ["--max-model-len", "64", "--tokenizer", str(find_checkpoint("tiny")), "--max-tokens", "8"]
    done = CliRunner().invoke(app, ["generate", "Hello", "Bye", "--n", "2", "--json", *options])
    assert done.exit_code == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["prompt"], one["index"]) for one in answers] == [("Hello", 0), ("Hello", 1), ("Bye", 0), ("Bye", 1)]
    assert answers[0]["text"] == answers[1]["text"]  # only the most likely token was there to be drawn
    [stopped] = answers[0]["text"][1:2]
    done = CliRunner().invoke(app, ["generate", "Hello", "--stop", stopped, "--json", *options])
    text = json.loads(done.stdout)["text"]
    assert answers[0]["text"].startswith(text) and stopped not in text
    too_long = CliRunner().invoke(app, ["generate", "Hello " * 80, *options])
    assert (too_long.exit_code, too_long.stdout) == (1, "") and "max_model_len 64" in too_long.stderr
    wrong = CliRunner().invoke(app, ["generate", "Hello", "--top-p", "2"])
    assert (wrong.exit_code, wrong.stdout) == (2, "") and "top_p must be" in wrong.stderr


def test_a_small_checkpoint_gets_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads_after(*options: str) -> int:
        torch.set_num_threads(3)
        done = CliRunner().invoke(app, ["generate", "Hello", "--max-tokens", "1", "--memory", "8MiB", *options])
        assert done.exit_code == 0, done.stderr
        return torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        assert threads_after() == 1
        assert threads_after("--threads", "2") == 2
        monkeypatch.setattr("hybrid.cli.options.SMALL_CHECKPOINT", 1000)
        assert threads_after() == 3
    finally:
        torch.set_num_threads(before)


# --- a terminal --------------------------------------------------------------------------------------------------


class Terminal:
    """A process on a pseudo terminal."""

    def __init__(self, *arguments: str) -> None:
        self.seen = ""
        self._at = 0  # up to here it was expected
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.environ.update(QUIET)
            os.execv(HYBRID[0], [*HYBRID, *arguments])

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        """As the terminal does for Ctrl-C."""
        self.send("\x03")

    def settle(self) -> None:
        """Python misses a signal between showing the prompt and waiting for input, until the next key."""
        time.sleep(1.0)

    def expect(self, text: str) -> str:
        """What comes from here on up to and with `text`, which must come."""
        deadline = time.monotonic() + PATIENCE
        while (end := self.seen.find(text, self._at)) < 0:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen[self._at :]!r}"
            assert self._read(0.1), f"it ended without {text!r}: {self.seen[self._at :]!r}"
        start, self._at = self._at, end + len(text)
        return self.seen[start : self._at]

    def _read(self, seconds: float) -> bool:
        """Whether the process still has its terminal."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            data = b""
        self.seen += data.decode(errors="replace")
        return data != b""

    def wait(self) -> int:
        """Its exit code, once it ends by itself."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._read(0.05)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it does not end: {self.seen!r}"

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """The bundled checkpoint with another end-of-text token, so that its answers do not end."""
    folder = Path(shutil.copytree(find_checkpoint("tiny"), tmp_path / "endless"))
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, "eos_token_id": config["pad_token_id"]}))
    return str(folder)


@pytest.fixture
def terminal(endless: str) -> Iterator[Terminal]:
    opened = Terminal("chat", "--model", endless, "--max-tokens", "1900", "--memory", "64MiB")
    yield opened
    opened.close()


@pytest.fixture
def seeing(picture: str) -> Iterator[Terminal]:
    opened = Terminal("chat", "--image", picture, "--max-tokens", "20")
    yield opened
    opened.close()


def test_ctrl_c_stops_an_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.expect("/help lists commands")
    terminal.expect("> ")
    for _ in range(2):
        terminal.send("Tell me a long story\n")
        terminal.expect("story")
        time.sleep(0.5)
        terminal.interrupt()
        terminal.expect("stopped; this question and its answer are not kept")
        terminal.expect("> ")
    terminal.send("/stats\n")
    assert "0 running, 0 waiting" in terminal.expect("0 waiting").replace("\r\n", " ")
    terminal.expect("> ")
    terminal.send("half a line")
    terminal.expect("half a line")
    terminal.settle()
    terminal.interrupt()
    terminal.expect("> ")
    terminal.settle()
    terminal.interrupt()  # with nothing typed
    assert terminal.wait() == 0
    assert "Traceback" not in terminal.seen


def test_a_dialogue_with_commands_and_pictures(seeing: Terminal, picture: str) -> None:
    terminal = seeing
    terminal.expect("tokens; it goes with your next message")
    terminal.expect("> ")
    terminal.send("What color is it?\n")
    terminal.expect("\n")
    terminal.expect("> ")
    for command, answer in (
        ("/image /no/such.png", "'/no/such.png' does not exist"),
        (f"/image '{picture}'", "it goes with your next message"),
        ("/help", "Ctrl-C with nothing typed"),
        ("/clear", "the conversation starts anew"),
        ("/system Be brief.", "new system message"),
        ("/nonsense", "there is no command '/nonsense'"),
    ):
        terminal.send(command + "\n")
        terminal.expect(answer)
        terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.wait() == 0
    assert "Traceback" not in terminal.seen
