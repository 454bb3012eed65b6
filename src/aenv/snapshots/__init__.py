"""Captures on disk: who needs which layer, and what may be removed."""
