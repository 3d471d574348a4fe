"""Odd configurations of every model family, one file per model_type; see `oracle`."""
