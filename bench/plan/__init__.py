"""What is to be measured: checked settings, cells with their questions, and their identity. No torch."""
