"""`python -m torchamp` says what is installed here and what is wrong with it."""

import sys

from torchamp.doctor import main

if __name__ == "__main__":
    sys.exit(main())
