"""Sizing: how many requests fit, which pool binds, and how to split the memory over the pools."""
