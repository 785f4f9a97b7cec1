"""Table of gpu_check's queues: the step times that its jobs have left in queues-N.json, one line for each N, - where a job
left none."""

import json
import pathlib
import sys

CONNECTIONS = (1, 2, 4, 8, 32)


def step_ms(folder, connections, side):
    try:
        record = json.loads((folder / f"queues-{connections}.json").read_text())
    except (OSError, ValueError):
        return "-"
    time = record.get(side, {}).get("step_ms")
    return "-" if time is None else f"{time:.1f}"


def main(folder):
    folder = pathlib.Path(folder)
    print("CUDA_DEVICE_MAX_CONNECTIONS  native ms a step  compressed ms a step")
    for connections in CONNECTIONS:
        native, compressed = (step_ms(folder, connections, side) for side in ("off", "on"))
        print(f"{connections:27}  {native:>16}  {compressed:>20}")


if __name__ == "__main__":
    main(sys.argv[1])
