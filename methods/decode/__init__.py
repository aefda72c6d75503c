"""One decoding loop for all methods: draws, sampling, verification, the target and its cache."""
