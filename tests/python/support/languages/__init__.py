"""Programs that both C++ and Python run."""
