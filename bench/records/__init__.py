"""What is kept on disk, and who wrote it where. The only package that writes results."""
