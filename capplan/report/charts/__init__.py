"""Charts as data, and their two writers: SVG with marks that a page makes interactive, and matplotlib for files."""
