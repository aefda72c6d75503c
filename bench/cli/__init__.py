"""What lies between a shell and a plan: Hydra's search path, a mistake in one line, a scheduler's signals."""
