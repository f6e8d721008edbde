"""What a plan file holds, and what is asked of it later."""
