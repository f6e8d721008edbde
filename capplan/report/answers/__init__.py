"""The answer of each command: its result, tables and footnotes. A file is named for its command."""
