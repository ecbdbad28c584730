"""Slow, plain PyTorch versions of what torchamp computes."""
