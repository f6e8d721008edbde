"""Results to terminal, Markdown, CSV, JSON, HTML and pictures."""
