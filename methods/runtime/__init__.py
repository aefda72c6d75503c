"""What runs the target's layers: the key/value cache, and the stock, fused and recorded ways through them."""
