"""`python -m torchamp` reports on the installation; `--cmakedir` prints what find_package needs."""

import argparse
import sys

from torchamp import __version__, cmake_prefix_path, doctor


def main() -> int:
    """Does what the command line asks for and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torchamp", description=__doc__)
    parser.add_argument(
        "command",
        nargs="?",
        choices=["doctor"],
        default="doctor",
        help="report what torchamp finds on this machine, what is missing, and how to fix it",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--version", action="version", version=f"torchamp {__version__}")
    parser.add_argument(
        "--cmakedir",
        action="store_true",
        help="print the folder for CMAKE_PREFIX_PATH, and nothing else",
    )
    options = parser.parse_args()
    if options.cmakedir:
        doctor.show(cmake_prefix_path)
        return 0
    return doctor.examine(options.json)


if __name__ == "__main__":
    sys.exit(main())
