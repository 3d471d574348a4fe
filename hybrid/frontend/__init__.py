"""Between users and the engine: prompts, messages and pictures become tokens; tokens become text and outputs.

In: `processor`, with `tokenizer`, `messages` and `image_reference`, makes a `prompt`. Out: `generation`, with
`detokenizer` and `stop_strings`, makes updates; `collector` makes one RequestOutput of them. Nothing here decides when
a request runs.
"""
