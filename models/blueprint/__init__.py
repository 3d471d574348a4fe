"""Blueprints: what a decoder is made of, as frozen data read off a `config.json`. No torch in here.

`parts`, `recurrent` and `experts` are what a layer does, `decoder` puts them into layers, `rope` describes position
embeddings, `config_reader` reads keys. A blueprint names every tensor of the checkpoint with its shape and says what
every layer keeps per request: loading, pool sizes and the planner read one description. `models.layers` builds it.
"""
