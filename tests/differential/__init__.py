"""Our reading of config.json against the models that transformers builds from the same files."""
