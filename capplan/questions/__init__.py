"""What people ask: a scenario, a plan file, flags or measured rows to what the rooms below are asked, and back to an answer."""
