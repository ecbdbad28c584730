"""A folder for PYTHONPATH, which makes Python processes that a program starts alias as it does."""
