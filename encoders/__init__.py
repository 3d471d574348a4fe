"""Images to embeddings: preprocessing, vision towers and placeholder expansion. Imports only `pools.specs` of ours."""
