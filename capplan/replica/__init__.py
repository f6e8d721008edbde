"""One replica of one plan, or of an array of plans: its memory, its step times, its latency and throughput at a load."""
