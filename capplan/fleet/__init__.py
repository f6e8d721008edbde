"""What to buy: candidate plans, search, replicas, prices."""
