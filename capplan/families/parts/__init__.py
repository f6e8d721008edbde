"""Building blocks of families: attention blocks, layer stacks, state layers, vision towers."""
