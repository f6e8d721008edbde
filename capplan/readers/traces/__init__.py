"""Importers of request traces and of what monitoring knows of the traffic: one small file per kind of file."""
