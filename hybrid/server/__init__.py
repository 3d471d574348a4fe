"""The OpenAI-compatible HTTP server: bodies become requests, updates become bodies. The engine knows nothing of it.

Needs the extra `serve`; nothing outside this folder imports it, except the command `hybrid serve`.
"""
