"""Importers of request traces and of monitoring data on traffic: one small file per format."""
