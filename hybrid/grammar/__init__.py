"""Grammars: what a request's output must follow, compiled in the background, and the tokens it allows at each step."""
