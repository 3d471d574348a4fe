"""LoRA adapters: which are loaded, under which generation. Reading PEFT checkpoints and batching their weights come
here.

This folder imports `hybrid.pools.specs` and nothing else of ours.
"""
