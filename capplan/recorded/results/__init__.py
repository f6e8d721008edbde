"""Result files of benchmark tools, read into one record in base units."""
