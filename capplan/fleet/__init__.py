"""What to buy: candidate plans as arrays, search, replicas, prices."""
