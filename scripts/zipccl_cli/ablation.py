"""zipccl perf ablation and --hold-back: one benchmark in several settings, each in fresh processes."""

import json
import pathlib
import statistics

from zipccl_cli import paths
from zipccl_cli.measure import backend_text, measure, wrong_calls
from zipccl_cli.table import format_table, size_text

LATE = (0, 0.5, 1, 2)  # native calls
SPLIT_SHARE = 0.7      # of the uncompressed split's first part, as a message's fixed part is of its values

# (name, environment)
SETTINGS = (
    ("sizes-first", {"ZIPCCL_EXCHANGE": "sizes-first"}),
    ("exact", {"ZIPCCL_EXCHANGE": "exact"}),
    # One hardware queue fewer than CUDA's default: chunks then do not overlap.
    ("static, no overlap", {"ZIPCCL_EXCHANGE": "static", "CUDA_DEVICE_MAX_CONNECTIONS": "7",
                            "ZIPCCL_IGNORE_MAX_CONNECTIONS": "1"}),
    ("static, overlap", {"ZIPCCL_EXCHANGE": "static"}),
)
# All-to-alls have no other exchange mode, and go in one piece.
ALL_TO_ALL_SETTINGS = (("static", {"ZIPCCL_EXCHANGE": "static"}),)

CONNECTIONS = (1, 2, 4, 8, 32)


def _late_name(late):
    return "in step" if late == 0 else f"late {late:g}"


def _cells(name, by_late, side):
    """A line of the table: times with speedups over the native calls of the same processes."""
    cells = [name]
    for late in LATE:
        row = by_late[late]
        cells.append(f"{row[side]['us']:.0f}")
        cells.append("-" if side == "native" else f"{row['native']['us'] / row[side]['us']:.3f}")
    first = by_late[0]
    traffic = first.get("traffic")
    ratio = f"{traffic['ratio']:.3f}" if side == "zipccl" and traffic and traffic["wire_bytes"] else "native"
    return [*cells, f"{first[side]['call_us']:.1f}", f"{first['native']['call_us']:.1f}", ratio]


def _native(results):
    """The native side over all processes, by lateness: medians of their medians."""
    def middle(late, key):
        return statistics.median(by_late[late]["native"][key] for by_late in results.values())

    return {late: {"native": {key: middle(late, key) for key in ("us", "call_us")}} for late in LATE}


def format_ablation(results):
    """results: by setting, by lateness, the benchmark's row of one size; pure."""
    header = ["way", *(cell for late in LATE for cell in (f"{_late_name(late)}(us)", "speedup")), "call(us)",
              "NCCL's(us)", "ratio"]
    lines = [_cells("native", _native(results), "native")]
    lines += [_cells(name, by_late, "zipccl") for name, by_late in results.items()]
    times = [by_late[0]["native"]["us"] for by_late in results.values()]
    spread = (max(times) - min(times)) / statistics.median(times)
    return "\n".join([format_table(header, lines),
                      f"# native calls in step differ by {100 * spread:.1f} % between the processes"])


def ablation(options):
    """The table: what each setting gives, with the ranks in step and with the last one late."""
    if options.json:
        paths.writable(options.json)
    all_to_all = options.benchmark == "all-to-all"
    settings = [(name, variables, ()) for name, variables in (ALL_TO_ALL_SETTINGS if all_to_all else SETTINGS)]
    if all_to_all:
        settings.append(("uncompressed, in two parts", {}, ("--in-two", str(SPLIT_SHARE))))
    sizes, failed, environment = {}, 0, {}
    for name, variables, arguments in settings:
        status, rows, environment = measure(options, variables, arguments)
        failed = failed or status or int(wrong_calls(rows) > 0)
        for row in rows:
            if arguments:
                row["traffic"] = None  # past zipccl
            sizes.setdefault(row["bytes"], {}).setdefault(name, {})[row["late"]] = row
    print(f"# ablation of {options.benchmark}, {backend_text(environment)}, input {options.input}, medians of "
          f"{options.iterations} calls; speedups over the native calls of the same processes, made in turn")
    for size, results in sizes.items():
        complete = {name: by_late for name, by_late in results.items() if set(by_late) == set(LATE)}
        if complete:
            print(f"# {size_text(size)}")
            print(format_ablation(complete))
    if options.json:
        record = {"benchmark": f"ablation {options.benchmark}", "backend": backend_text(environment),
                  "input": options.input,
                  "rows": [{"setting": name, **row} for results in sizes.values()
                           for name, by_late in results.items() for row in by_late.values()]}
        pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    return failed or int(not sizes)


def _ran(count, of):
    return "returned late" if count < 0 else "all" if count == of else "none" if count == 0 else f"{count} of {of}"


def hold_back(options):
    """Kernels on other streams that run while a call waits for a late rank, by CUDA_DEVICE_MAX_CONNECTIONS."""
    found = []
    for connections in CONNECTIONS:
        status, rows, _ = measure(options, {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections),
                                                 "ZIPCCL_IGNORE_MAX_CONNECTIONS": "1"})
        if status != 0 or not rows:
            return status or 1
        found.append({"connections": connections, **rows[0]})
    lines = []
    for row in found:
        compressed = row["traffic"] and row["traffic"]["wire_bytes"]
        lines.append([str(row["connections"]), _ran(row["native_ran"], row["of"]),
                      _ran(row["zipccl_ran"], row["of"]) + ("" if compressed else " (native)")])
    print(f"# kernels on {found[0]['of']} other streams that ran while a call of {size_text(found[0]['bytes'])} waited "
          f"for a late rank{', calls as CUDA graphs' if options.graph else ''}")
    print(format_table(["CUDA_DEVICE_MAX_CONNECTIONS", "native", "zipccl"], lines))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"benchmark": "hold-back", "rows": found}, indent=1) + "\n")
    return 0
