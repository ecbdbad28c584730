"""Reference implementations in plain PyTorch."""
