"""Measure a running server that speaks the OpenAI protocol."""
