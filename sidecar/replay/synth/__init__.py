"""Synthetic requests for a model: sound ones of every modality, and ones that are broken in a chosen way."""
