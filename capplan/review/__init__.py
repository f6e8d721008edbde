"""The page for the planning review: its content, section by section, and its formats."""
