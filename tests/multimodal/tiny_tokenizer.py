"""A tokenizer of bytes, special tokens and a few merges, of line breaks too: they join what an image's marks bring with
what stands beside it."""

from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<end>", "<bos>", "<image>", "<begin>", "<finish>", "<mark>", "<break>", "<turn>")
PAD, END, BOS, IMAGE, BEGIN, FINISH, MARK, BREAK, TURN = range(len(SPECIAL))
FIRST_BYTE = 16  # ids below are special, or nobody's
MERGES = [("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("ĊĊ", "ĊĊ"), ("t", "h"), ("th", "e")]
VOCAB_SIZE = 300

TEMPLATE = (
    "{% for message in messages %}<turn>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}PLACEHOLDER{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def tiny_tokenizer(placeholder: str, more: tuple[str, ...] = (), **names: str) -> PreTrainedTokenizerFast:
    """placeholder: what a chat has where a picture belongs. more: further special tokens, with the ids after TURN.
    names: special tokens by transformers' name."""
    special = (*SPECIAL, *more)
    assert len(special) <= FIRST_BYTE
    vocab = {token: index for index, token in enumerate(special)}
    vocab |= {letter: FIRST_BYTE + index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = max(vocab.values()) + 1
    assert max(vocab.values()) < VOCAB_SIZE
    tokenizer = Tokenizer(BPE(vocab, MERGES))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = fast(
        tokenizer_object=tokenizer,
        eos_token="<end>",
        pad_token="<pad>",
        bos_token="<bos>",
        extra_special_tokens=names,
        chat_template=TEMPLATE.replace("PLACEHOLDER", placeholder),
    )
    return made
