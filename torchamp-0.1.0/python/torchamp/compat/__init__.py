"""The compatibility layer: apex's old names, translated to torchamp's. Nothing outside of
this package uses it, except `torchamp.install_as_apex` and `python -m torchamp.apex`."""
