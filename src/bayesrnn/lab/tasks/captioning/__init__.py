"""Captions for images."""
