"""`python -m torchamp.apex script.py …` runs a program of apex's, unchanged, on torchamp."""

import sys

from torchamp.compat.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
