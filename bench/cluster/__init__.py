"""Grids on a cluster: a Slurm array of one task a cell."""
