"""What families are built from: attention blocks, layer stacks, state layers, vision towers."""
