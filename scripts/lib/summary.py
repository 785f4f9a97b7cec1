"""Table of the steps that steps.sh recorded, and the same as JSON beside it. Fails if a step failed or none ran."""

import json
import pathlib
import sys


def read(lines):
    steps = []
    for line in lines:
        name, status, seconds, figure = line.rstrip("\n").split("\t", 3)
        state = "skipped" if status == "skipped" else "ok" if status == "0" else f"failed ({status})"
        steps.append({"step": name, "state": state, "seconds": int(seconds), "figure": figure.strip()})
    return steps


def main(folder):
    folder = pathlib.Path(folder)
    steps = read((folder / "steps.tsv").read_text().splitlines())
    if not steps:
        print("no step ran: STEPS matches none of this mode's names")
        return 1
    width = max(len(step["step"]) for step in steps)
    for step in steps:
        print(f"{step['step']:{width}}  {step['state']:12}  {step['seconds']:4} s  {step['figure'][:110]}".rstrip())
    (folder / "summary.json").write_text(json.dumps(steps, indent=1) + "\n")
    failed = sum(step["state"].startswith("failed") for step in steps)
    ran = sum(step["state"] != "skipped" for step in steps)
    print(f"{ran - failed} ok, {failed} failed, {len(steps) - ran} skipped; logs and summary.json in {folder}")
    return 0 if ran and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
