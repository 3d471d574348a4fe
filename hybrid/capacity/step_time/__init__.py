"""Step times: how long an engine takes for a step, from a datasheet or from measurements. Measures nothing."""
