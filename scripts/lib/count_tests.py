"""Prints "N passed, N failed, N skipped" from Meson's testlog.json; fails if nothing ran or something failed."""

import json
import sys

PASSED = {"OK", "EXPECTEDFAIL"}


def count(lines):
    results = [json.loads(line)["result"] for line in lines if line.strip()]
    passed = sum(result in PASSED for result in results)
    skipped = sum(result == "SKIP" for result in results)
    return passed, len(results) - passed - skipped, skipped


def main(path):
    try:
        with open(path) as log:
            passed, failed, skipped = count(log)
    except FileNotFoundError:
        passed, failed, skipped = 0, 0, 0
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
