"""StepPlans in, StepResults out: the only part that launches the model.

`model_runner` runs one plan; `row_mirror` is what the runner itself knows of every row, `caches` the pool tensors,
`batch` turns plan and mirror into tensors, `sampler` chooses tokens. Nothing here decides who runs.
"""
