"""GGUF files -> networks: metadata in the keys of config.json, and the type of every tensor in the file."""
