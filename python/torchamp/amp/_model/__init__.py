"""Stage 2: the models that initialize returns."""
