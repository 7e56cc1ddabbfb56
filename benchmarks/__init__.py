"""Measurements against the baselines; tests do not time."""
