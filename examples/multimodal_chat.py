"""A conversation about pictures: several of them in a message, and in several turns.

`python -m examples.multimodal_chat` asks the bundled model about bundled pictures; a turn of yours is a question and
the pictures that go with it, `--turn "Which is larger?" a.png https://example.com/b.png`, as often as you like. URLs
are read where `--allowed-media-domains` and `--allowed-local-media-path` let them. Each picture's tokens of the context
are shown, and, after each answer, how much of the conversation came from the prefix cache.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid import LLM, SamplingParams
from hybrid.frontend.media import MediaPolicy, read_picture

PICTURES = Path(__file__).parent / "pictures"
TURNS = (
    ("What digit is this?", str(PICTURES / "digit.png")),
    ("How many shapes are there in each?", str(PICTURES / "one_shape.png"), str(PICTURES / "two_shapes.png")),
    ("Thank you!",),
)


def main() -> None:
    """Parse the command line and hold the conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a folder, or a name that `LLM` knows")
    parser.add_argument("--memory", default=None, help="of all pools together, such as 512MiB")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens of one answer")
    parser.add_argument("--turn", nargs="+", action="append", metavar=("QUESTION", "PICTURE"))
    parser.add_argument("--allowed-media-domains", nargs="+", default=(), metavar="HOST")
    parser.add_argument("--allowed-local-media-path", default=None, metavar="FOLDER")
    args = parser.parse_args()
    try:
        policy = MediaPolicy(
            allowed_domains=args.allowed_media_domains, allowed_local_path=args.allowed_local_media_path
        )
        llm = LLM(args.model, memory=args.memory)
        converse(llm, args.turn or TURNS, policy, SamplingParams(temperature=0, max_tokens=args.max_tokens))
    except ValueError as error:
        sys.exit(str(error))


def converse(llm: LLM, turns: Sequence[Sequence[str]], policy: MediaPolicy, params: SamplingParams) -> None:
    """Ask each turn's question after the turns before it, and print what comes. Raises ValueError."""
    messages: list[dict[str, Any]] = []
    for question, *references in turns:
        print(f"> {question}")
        content: list[dict[str, Any]] = []
        for reference in references:
            picture = read_picture(reference, policy)
            print(f"  {reference}: {picture.width} x {picture.height}, {llm.num_image_tokens(picture)} tokens")
            content.append({"type": "image", "image": picture})
        messages.append({"role": "user", "content": [*content, {"type": "text", "text": question}]})
        [output] = llm.chat(messages, params)
        if output.error is not None:
            raise ValueError(output.error)
        print(output.outputs[0].text)
        print(f"  {output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens from the prefix cache")
        messages.append({"role": "assistant", "content": output.outputs[0].text})


if __name__ == "__main__":
    main()
