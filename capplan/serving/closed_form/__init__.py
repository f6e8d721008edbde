"""What holds under steady load without a simulation."""
