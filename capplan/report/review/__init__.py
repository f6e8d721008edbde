"""The page for the planning review: what stands in it, section by section, and its forms."""
