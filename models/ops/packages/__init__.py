"""Kernels of other packages, `mamba_ssm` and `causal_conv1d`, in place of our own where they are installed, right and
faster on the device at hand. Nothing needs them, and nothing of them is imported where there is no CUDA device.

`contest` decides about one operation, `choose` about all of a model's; `conv` and `ssd` make the packages' functions
look like ours.
"""
