"""Files to values: configs, catalogues, scenarios, traces, measured results."""
