"""Log-probabilities in the shapes of the two APIs. Knows no request."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from hybrid.frontend.token_bytes import token_bytes
from hybrid.frontend.tokenizer import Tokenizer
from hybrid.outputs import Logprob

from .chat_protocol import ChatLogprobs, TokenLogprob, TopLogprob
from .completion_protocol import CompletionLogprobs

LOWEST = -9999.0  # instead of minus infinity, which JSON does not have; as in vLLM

Entries = Sequence[Mapping[int, Logprob]]  # one per token: the generated one first, then the most likely ones


def chat_logprobs(entries: Entries, tokenizer: Tokenizer, number: int, as_ids: bool) -> ChatLogprobs:
    """number: how many of the most likely tokens. as_ids: tokens are named token_id:ID."""

    def one(token_id: int, logprob: Logprob) -> TopLogprob:
        text = logprob.decoded_token or ""
        name = f"token_id:{token_id}" if as_ids else text
        data = list(token_bytes(tokenizer, token_id, text))
        return TopLogprob(token=name, logprob=max(logprob.logprob, LOWEST), bytes=data)

    content = []
    for entry in entries:
        generated = one(*next(iter(entry.items())))
        likely = sorted(entry.items(), key=lambda item: item[1].logprob, reverse=True)[:number]
        top = [one(token_id, logprob) for token_id, logprob in likely]
        content.append(TokenLogprob(**generated.model_dump(), top_logprobs=top))
    return ChatLogprobs(content=content)


def completion_logprobs(entries: Entries, offset: int, as_ids: bool) -> CompletionLogprobs:
    """offset: where in the text the first token begins."""

    def name(token_id: int, logprob: Logprob) -> str:
        return f"token_id:{token_id}" if as_ids else logprob.decoded_token or ""

    generated = [next(iter(entry.items())) for entry in entries]
    lengths = (len(logprob.decoded_token or "") for _, logprob in generated)
    return CompletionLogprobs(
        tokens=[name(*one) for one in generated],
        token_logprobs=[max(logprob.logprob, LOWEST) for _, logprob in generated],
        top_logprobs=[{name(*one): max(one[1].logprob, LOWEST) for one in entry.items()} for entry in entries],
        text_offset=[*accumulate(lengths, initial=offset)][:-1],
    )


def num_characters(entries: Entries) -> int:
    """Of the generated tokens' texts, however the tokens are named."""
    return sum(len(next(iter(entry.values())).decoded_token or "") for entry in entries)
