"""Traffic: length distributions, arrival processes, request classes, traces."""
