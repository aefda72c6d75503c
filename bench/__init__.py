"""Measures decoding methods: plans cells, times blocks, writes raw records, derives tables."""

__version__ = "0.1.0"
