"""Measures decoding methods: plans cells, times blocks, writes raw records, derives tables."""
