"""What is kept of earlier prompts, in blocks and by rules of eviction."""
