"""What capplan writes: first scenarios and workloads."""
