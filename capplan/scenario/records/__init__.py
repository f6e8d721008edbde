"""The records of YAML keys."""
