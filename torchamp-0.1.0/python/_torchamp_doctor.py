"""The program torchamp-doctor. Outside of the package, so that it runs where torchamp cannot be
imported, and says why."""

import importlib.util
import pathlib
import sys


def main() -> int:
    """Runs torchamp/doctor.py without importing torchamp, and returns the exit status."""
    package = importlib.util.find_spec("torchamp")
    doctor = pathlib.Path(package.origin).with_name("doctor.py")
    spec = importlib.util.spec_from_file_location("_torchamp_doctor_report", doctor)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


if __name__ == "__main__":
    sys.exit(main())
