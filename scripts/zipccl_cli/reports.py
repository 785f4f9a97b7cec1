"""Sums what the processes of one job reported (ZIPCCL_REPORT)."""

import json
import pathlib


def _communicators(folder):
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        yield from json.loads(path.read_text()).get("communicators", ())


def reasons(folder):
    """Why communicators stayed native, each reason once."""
    return sorted({communicator["reason"] for communicator in _communicators(folder) if communicator.get("reason")})


def traffic(folder, sizes=None):
    """Bytes of all ranks' compressed calls, uncompressed and as sent, and calls by route; None without reports.
    sizes: only calls and point-to-point operations with the same power of two as one of these bytes."""
    powers = None if sizes is None else {size.bit_length() for size in sizes}
    total = {"raw_bytes": 0, "wire_bytes": 0, "overflow_bytes": 0, "routes": {}}
    found = False
    for communicator in _communicators(folder):
        for bucket in communicator["buckets"]:
            if powers is not None and bucket["from_bytes"].bit_length() not in powers:
                continue
            found = True
            for key in ("raw_bytes", "wire_bytes", "overflow_bytes"):
                total[key] += bucket.get(key, 0)
            for route, calls in bucket["calls"].items():
                total["routes"][route] = total["routes"].get(route, 0) + calls
    if not found:
        return None
    total["ratio"] = total["raw_bytes"] / total["wire_bytes"] if total["wire_bytes"] else None
    return total
