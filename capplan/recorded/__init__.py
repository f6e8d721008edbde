"""What was recorded elsewhere: request traces, engine metrics, results of benchmark tools, tables of measured rows."""
