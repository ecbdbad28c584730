"""`python -m torchamp` reports on the installation; `--cmakedir` prints what find_package needs."""

import sys

from torchamp import doctor

if __name__ == "__main__":
    sys.exit(doctor.main())
