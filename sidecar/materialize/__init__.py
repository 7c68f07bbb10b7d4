"""What the engine needs and the wire does not bring: hashes, pad values, padded ids, M-RoPE positions."""
