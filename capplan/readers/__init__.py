"""Files to checked records: one opener with limits, catalogues, the hub, calibrations, plan files."""
