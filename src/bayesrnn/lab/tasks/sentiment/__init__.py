"""Ratings from reviews."""
