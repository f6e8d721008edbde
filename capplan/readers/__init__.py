"""Files to checked records: catalogues, the hub, calibrations, traces, benchmark results."""
