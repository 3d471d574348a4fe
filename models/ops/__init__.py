"""The operations of the models that touch caches: attention, causal convolution, and the recurrences.

`dispatch` chooses an implementation; each is planned once per step and run once per layer. Tensors in, tensors out.
"""
