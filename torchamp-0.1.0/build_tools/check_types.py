"""Checks by `pyright --verifytypes` that the types of all public names are known, but for what
derives from packages that only some users have."""

import json
import subprocess
import sys

COMMAND = ["pyright", "--verifytypes", "torchamp", "--ignoreexternal", "--outputjson"]
OPTIONAL = {"torchamp.lightning.AmpPrecision", "torchamp.pytorch_lightning.AmpPrecision"}


def main() -> int:
    """Prints what is incomplete."""
    output = subprocess.run(COMMAND, stdout=subprocess.PIPE, text=True).stdout
    report = json.loads(output)["typeCompleteness"]
    if not report["symbols"]:
        print("pyright: expected torchamp to be installed, got no names", file=sys.stderr)
        return 1
    wrong = [
        each
        for each in report["symbols"]
        if (not each["isTypeKnown"] or each["isTypeAmbiguous"]) and each["name"] not in OPTIONAL
    ]
    for each in wrong:
        for message in each["diagnostics"]:
            print(f"{each['name']}: {message['message']}", file=sys.stderr)
    print(f"pyright: {report['completenessScore']:.1%} of the public names have complete types")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
