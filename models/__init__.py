"""What a model needs and computes: configurations, layers and families. Imports only `pools.specs` of ours."""
