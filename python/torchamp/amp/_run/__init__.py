"""The state of one initialize."""
