"""The layers of the native family for inference: plain objects over tensors, no autograd, no caches of their own."""
