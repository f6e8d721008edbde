"""From a scenario, flags or measured rows to the inputs of the rooms below."""
