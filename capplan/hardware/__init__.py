"""What a machine can do: device, interconnect, efficiency."""
