"""Hydra configuration groups; data only."""
