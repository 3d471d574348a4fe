"""Capacity: what fits into memory, from a `config.json` alone. Calls the engine's own arithmetic; imports no torch."""
