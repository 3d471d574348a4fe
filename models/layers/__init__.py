"""The layers of a decoder for inference: plain objects over tensors, built from blueprints; no autograd, no caches.

Every layer that a blueprint part describes is called with hidden states [num_tokens, hidden_size] and the `Step`.
"""
