"""The OpenAI-compatible server: routes, the engine's thread, and what stands before and beside them."""
