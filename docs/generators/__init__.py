"""What writes the generated pages, the schemas and the index of models."""
