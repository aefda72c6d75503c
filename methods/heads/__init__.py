"""What draft heads share: the EAGLE layer, published trees, draft vocabularies, strict checkpoints."""
