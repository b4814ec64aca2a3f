"""Gymnasium in both directions: its environments as ours, ours as its own."""
