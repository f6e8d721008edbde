"""What a scenario file and flags say: the records of YAML keys, read into what the rooms below are asked."""
