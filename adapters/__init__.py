"""LoRA adapters: PEFT checkpoints read and checked, which are loaded under which generation, their weights on the host.

This folder imports `hybrid.pools.specs` and nothing else of ours.
"""
