"""Simulation: the real scheduler and pools with a clock that jumps, instead of a model that computes. No torch."""
