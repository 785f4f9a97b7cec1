"""zipccl perf: the benchmarks' flags, and nccl-tests' columns with ours behind."""

import argparse
import json
import pathlib
import subprocess
import sys

from zipccl_cli import ablation, paths
from zipccl_cli.option_types import count, positive, seconds
from zipccl_cli.measure import SIDES, backend_text, measure, wrong_calls
from zipccl_cli.table import format_table

NO_GPU = 77  # exit status of a GPU program where there is none

COLUMNS = ["size(B)", "count", "type", "redop", "root", "time(us)", "algbw", "busbw", "#wrong",
           "time(us)", "algbw", "busbw", "#wrong", "speedup", "call(us)", "raw(B)", "wire(B)", "ratio"]


def bus_bandwidth(row, side):
    """GB/s of uncompressed bytes that the busiest rank sends or receives."""
    return row["bus_bytes"] / row[side]["us"] / 1e3


def _row(row):
    cells = [str(row["bytes"]), str(row["count"]), row["type"], "none", "-1"]
    for side in SIDES:
        part = row[side]
        cells += [f"{part['us']:.1f}", f"{row['bytes'] / part['us'] / 1e3:.2f}", f"{bus_bandwidth(row, side):.2f}",
                  str(part["wrong"])]
    cells += [f"{row['native']['us'] / row['zipccl']['us']:.3f}", f"{row['zipccl']['call_us']:.1f}"]
    traffic = row.get("traffic")
    if traffic and traffic["wire_bytes"]:
        # What a rank sends in one call, from the report of all calls of this size.
        raw = row["bytes"] // row["ranks"] if row["collective"] == "all-gather" else row["bus_bytes"]
        return [*cells, str(raw), f"{raw / traffic['ratio']:.0f}", f"{traffic['ratio']:.3f}"]
    return [*cells, "-", "-", "native"]


def _columns_and_cells(rows):
    columns, cells = COLUMNS, [_row(row) for row in rows]
    if any(row["late"] for row in rows):
        columns, cells = [*columns, "late"], [[*line, f"{row['late']:g}"] for line, row in zip(cells, rows)]
    if all("device_us" in row[side] for row in rows for side in SIDES):
        columns = [*columns, "native launch(us)", "device(us)", "zipccl device(us)"]
        cells = [[*line, f"{row['native']['call_us']:.1f}", f"{row['native']['device_us']:.1f}",
                  f"{row['zipccl']['device_us']:.1f}"] for line, row in zip(cells, rows)]
    return columns, cells


def _table(rows):
    wrong = wrong_calls(rows)
    bandwidth = {side: sum(bus_bandwidth(row, side) for row in rows) / len(rows) for side in SIDES}
    return "\n".join([
        "# native: columns 6 to 9, zipccl: columns 10 to 13; bandwidths in GB/s of uncompressed bytes",
        format_table(*_columns_and_cells(rows)),
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}",
        f"# Avg bus bandwidth    : {bandwidth['native']:.3f} native, {bandwidth['zipccl']:.3f} zipccl",
    ])


def _hook_table(rows):
    cells = [[row["call"], f"{row['native_us']:.3f}", f"{row['zipccl_us']:.3f}", f"{row['added_us']:.3f}"]
             for row in rows]
    return format_table(["host time of a call (us)", "native", "zipccl", "added"], cells)


def _variant(options):
    if options.benchmark == "send-recv":
        return "pairs, both directions at once"
    graph = ", replayed as CUDA graphs" if options.graph else ""
    if options.benchmark == "all-gather":
        return f"{'out of place' if options.out_of_place else 'in place'}{graph}"
    return f"{options.split} split{', grouped send and receive' if options.grouped else ''}{graph}"


def collective(options):
    if options.json:
        paths.writable(options.json)
    if options.benchmark != "send-recv" and options.hold_back:
        return ablation.hold_back(options)
    status, rows, environment = measure(options)
    if not rows:
        return status or 1
    ranks, backend = rows[0].get("ranks", options.ranks), backend_text(environment)
    if options.hook:
        print(f"# {ranks} ranks, {backend}, medians\n{_hook_table(rows)}")
    else:
        print(f"# {options.benchmark}, {ranks} ranks, {backend}, input {options.input}, medians of {options.iterations} "
              f"calls, {_variant(options)}\n{_table(rows)}")
    if options.json:
        record = {"benchmark": options.benchmark, "ranks": ranks, "backend": backend, "input": options.input,
                  "variant": _variant(options), "rows": rows}
        pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    return status or int(not options.hook and wrong_calls(rows) > 0)


def codec(options):
    binary = paths.program("codec-perf")
    kind = options.input if options.input != "recorded" else f"recorded:{options.data}"
    arguments = ["-b", options.smallest, "-e", options.largest, "-f", options.factor, "-n", str(options.iterations),
                 "-w", str(options.warm_up), "--input", kind]
    if options.json:
        arguments += ["--json", options.json]
    if options.pool_fraction is not None:
        arguments += ["--pool-fraction", str(options.pool_fraction)]
    status = subprocess.run([str(binary), *arguments], check=False).returncode
    if status == NO_GPU:
        print("zipccl: perf codec needs a GPU", file=sys.stderr)
    return status


def _add_common_arguments(parser, smallest, largest, factor):
    parser.add_argument("-b", dest="smallest", default=smallest, metavar="BYTES", help=f"smallest size ({smallest})")
    parser.add_argument("-e", dest="largest", default=largest, metavar="BYTES", help=f"largest size ({largest})")
    parser.add_argument("-f", dest="factor", default=factor, metavar="N", help=f"factor between sizes ({factor})")
    parser.add_argument("-n", dest="iterations", type=positive, metavar="N", default=20, help="timed calls a size (20)")
    parser.add_argument("-w", dest="warm_up", type=count, metavar="N", default=5, help="calls before (5)")
    parser.add_argument("-J", dest="json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--data", type=pathlib.Path, metavar="DIR", default=paths.RECORDED,
                        help="folder of recorded tensors")


def add_codec_arguments(parser):
    _add_common_arguments(parser, "1M", "1G", "4")
    parser.add_argument("--input", metavar="KIND", default="recorded",
                        help="normal, random, zeros or recorded (recorded)")
    parser.add_argument("--pool-fraction", type=positive, metavar="UNITS", help="room of a message, per 256 tiles")


def _add_collective_arguments(parser, prefix, smallest="1M", largest="256M"):
    _add_common_arguments(parser, smallest, largest, "2")
    parser.add_argument("-i", dest="increment", metavar="BYTES", help="step between sizes, instead of -f")
    parser.add_argument("-g", dest="gpus", type=positive, metavar="N", help="same as --ranks")
    parser.add_argument("-c", dest="check", type=int, choices=(0, 1), default=1, help="compare every byte (1)")
    parser.add_argument("-d", dest="type", metavar="TYPE", default="bfloat16", help="data type (bfloat16)")
    parser.add_argument("-o", dest="operator", metavar="OP", help="ignored: there is no reduction")
    parser.add_argument("--input", metavar="KIND", default="recorded",
                        help=f"normal, random, zeros or recorded[:PREFIX of file names] (recorded:{prefix})")
    parser.add_argument("--ranks", type=positive, metavar="N", help="processes (2, or one a GPU)")
    parser.add_argument("--share-gpu", action="store_true", help="let ranks share GPUs although there are enough")
    parser.add_argument("--no-preload", action="store_true", help="native against native: the noise")
    parser.add_argument("--standin", action="store_true", help="the stand-in NCCL although there is a GPU")
    parser.add_argument("--lib", metavar="PATH", help="libzipccl.so to preload")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="limit of the whole run")


def _add_hook_argument(parser):
    parser.add_argument("--hook", action="store_true",
                        help="host times instead: what interception costs calls that stay native, and how long "
                             "compressed ones take to return")


def _add_waiting_arguments(parser):
    parser.add_argument("--late", default="0", metavar="LIST",
                        help="how late the last rank is, in native calls, separated by commas: one row each (0)")
    parser.add_argument("--graph", action="store_true", help="replay each call as a CUDA graph")
    parser.add_argument("--hold-back", action="store_true", help="count the kernels on other streams that run while a "
                        "call waits for a late rank, by CUDA_DEVICE_MAX_CONNECTIONS (size: -b)")


def add_all_gather_arguments(parser):
    _add_collective_arguments(parser, "weights")
    _add_hook_argument(parser)
    _add_waiting_arguments(parser)
    parser.add_argument("--out-of-place", action="store_true", help="separate send buffers (default: in place)")


def add_all_to_all_arguments(parser):
    _add_collective_arguments(parser, "mlp-input-l")
    _add_hook_argument(parser)
    _add_waiting_arguments(parser)
    parser.add_argument("--split", choices=("even", "zipf", "single-hot"), default="even",
                        help="what each rank gets: the same, 1 / (rank + 1), or rank 0 four fifths (even)")
    parser.add_argument("--grouped", action="store_true",
                        help="grouped send and receive, as for uneven splits, instead of ncclAlltoAll")


def add_send_recv_arguments(parser):
    _add_collective_arguments(parser, "mlp-input-l")
    _add_hook_argument(parser)


def add_ablation_arguments(parser):
    parser.add_argument("benchmark", nargs="?", choices=("all-gather", "all-to-all"), default="all-gather",
                        help="what to measure (all-gather)")
    _add_collective_arguments(parser, "weights or mlp-input-l", "64M", "64M")
    parser.add_argument("--split", choices=("even", "zipf", "single-hot"), default="even",
                        help="of an all-to-all: what each rank gets (even)")
    parser.add_argument("--grouped", action="store_true", help="of an all-to-all: as grouped send and receive")
    parser.set_defaults(out_of_place=False, graph=False, hold_back=False, hook=False,
                        late=",".join(f"{late:g}" for late in ablation.LATE))
