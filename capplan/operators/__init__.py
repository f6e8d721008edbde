"""What one operator costs: FLOP, bytes moved, bytes sent, and the time they take."""
