"""What a serving engine does, as data by version."""
