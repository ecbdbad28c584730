"""`python -m torchamp` reports on the installation; `--cmakedir` prints what find_package needs."""

import argparse
import sys

from torchamp import cmake_prefix_path
from torchamp.doctor import main as run_doctor


def main() -> int:
    """Does what the command line asks for and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torchamp", description=__doc__)
    parser.add_argument(
        "--cmakedir",
        action="store_true",
        help="print the folder for CMAKE_PREFIX_PATH, and nothing else",
    )
    if parser.parse_args().cmakedir:
        print(cmake_prefix_path)
        return 0
    return run_doctor()


if __name__ == "__main__":
    sys.exit(main())
