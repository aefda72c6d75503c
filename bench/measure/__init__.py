"""Runs cells: the only package of bench that drives a model."""
