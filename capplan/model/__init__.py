"""What a network is: layers, mixers, experts, parameters, KV and state bytes, sharding."""
