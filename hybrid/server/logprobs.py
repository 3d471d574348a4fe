"""Log-probabilities in the shapes of the two APIs. Knows no request."""

from collections.abc import Mapping, Sequence

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

    tokens, offsets = [], []
    for entry in entries:
        token_id, logprob = next(iter(entry.items()))
        tokens.append(name(token_id, logprob))
        offsets.append(offset)
        offset += len(logprob.decoded_token or "")
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[max(next(iter(entry.values())).logprob, LOWEST) for entry in entries],
        top_logprobs=[
            {name(token_id, logprob): max(logprob.logprob, LOWEST) for token_id, logprob in entry.items()}
            for entry in entries
        ],
        text_offset=offsets,
    )
