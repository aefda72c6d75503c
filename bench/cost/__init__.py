"""What a plan costs before it runs and how far it is: hours, memory, downloads, bounds. No torch."""
