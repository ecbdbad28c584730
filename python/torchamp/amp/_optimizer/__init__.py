"""Stages 4 to 7: losses, steps and clipping."""
