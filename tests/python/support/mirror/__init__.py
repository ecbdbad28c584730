"""The rule of docs/grads.md in plain PyTorch."""
