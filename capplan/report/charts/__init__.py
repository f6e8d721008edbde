"""Charts as data, and their writer: SVG, with marks that a page makes interactive."""
