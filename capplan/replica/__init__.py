"""One replica of one plan, or of an array of plans: what it holds, how long its steps take, what it delivers."""
