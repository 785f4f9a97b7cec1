"""zipccl perf: launches the benchmarks and prints nccl-tests' columns with ours behind."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from zipccl_cli import one_gpu, paths, reports
from zipccl_cli.table import format_table, size_text

DEFAULT_STANDIN_RATE = "25"  # megabytes a second
NO_GPU = 77  # exit status of a GPU program where there is none

COLUMNS = ["size(B)", "count", "type", "redop", "root", "time(us)", "algbw", "busbw", "#wrong",
           "time(us)", "algbw", "busbw", "#wrong", "speedup", "call(us)", "raw(B)", "wire(B)", "ratio"]


def _backend(options):
    """(benchmark, environment, ranks): the real NCCL where there is a GPU, else the stand-in."""
    gpus = 0 if options.standin else one_gpu.gpu_count()
    ranks = options.ranks or options.gpus or (gpus if gpus > 1 else 2)
    if gpus == 0:
        return (paths.program("all-gather-perf-standin"),
                {"STANDIN_RATE_MBPS": os.environ.get("STANDIN_RATE_MBPS", DEFAULT_STANDIN_RATE)}, ranks)
    binary = paths.program("all-gather-perf")
    return binary, paths.nccl_environment(binary), ranks


def _row(measured, traffic):
    ranks = measured["ranks"]
    cells = [str(measured["bytes"]), str(measured["count"]), measured["type"], "none", "-1"]
    for side in ("native", "zipccl"):
        part = measured[side]
        algorithm = measured["bytes"] / part["us"] / 1e3
        cells += [f"{part['us']:.1f}", f"{algorithm:.2f}", f"{algorithm * (ranks - 1) / ranks:.2f}",
                  str(part["wrong"])]
    cells += [f"{measured['native']['us'] / measured['zipccl']['us']:.3f}", f"{measured['zipccl']['call_us']:.1f}"]
    if traffic and traffic["wire_bytes"]:
        # What a rank sends in one call, from the report of all calls of this size.
        raw = measured["bytes"] // ranks
        return [*cells, str(raw), f"{raw / traffic['ratio']:.0f}", f"{traffic['ratio']:.3f}"]
    return [*cells, "-", "-", "native"]


def _table(measured):
    rows = [_row(row, row.get("traffic")) for row in measured]
    wrong = sum(row[side]["wrong"] for row in measured for side in ("native", "zipccl"))
    bandwidth = {side: sum(row["bytes"] / row[side]["us"] / 1e3 * (row["ranks"] - 1) / row["ranks"]
                           for row in measured) / len(measured) for side in ("native", "zipccl")}
    return "\n".join([
        "# native: columns 6 to 9, zipccl: columns 10 to 13; bandwidths in GB/s of uncompressed bytes",
        format_table(COLUMNS, rows),
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}",
        f"# Avg bus bandwidth    : {bandwidth['native']:.3f} native, {bandwidth['zipccl']:.3f} zipccl",
    ])


def _arguments(options, output):
    arguments = ["-J", str(output), "-w", str(options.warm_up), "-n", str(options.iterations),
                 "-c", str(options.check), "-d", options.type, "--input", options.input, "--data", str(options.data),
                 "--in-place", "0" if options.out_of_place else "1", "--hook", "1" if options.hook else "0",
                 "-b", options.smallest, "-e", options.largest, "-f", options.factor]
    return arguments + (["-i", options.increment] if options.increment else [])


def _hook_table(measured):
    rows = [[row["call"], f"{row['native_us']:.3f}", f"{row['zipccl_us']:.3f}", f"{row['added_us']:.3f}"]
            for row in measured]
    return format_table(["host time of a call (us)", "native", "zipccl", "added"], rows)


def all_gather(options):
    binary, environment, ranks = _backend(options)
    if options.json:
        paths.writable(options.json)
    if not options.no_preload:
        environment.setdefault("ZIPCCL_START", "always")  # every call counts
        environment["LD_PRELOAD"] = paths.with_preload(paths.library(options.lib))
    with tempfile.TemporaryDirectory(prefix="zipccl-perf-") as folder:
        output, report_folder = pathlib.Path(folder) / "rows", pathlib.Path(folder) / "reports"
        report_folder.mkdir()
        environment["ZIPCCL_REPORT"] = str(report_folder)
        status = one_gpu.run([str(binary), *_arguments(options, output)], ranks, environment,
                             share=True if options.share_gpu else None, timeout=options.timeout)
        lines = output.read_text().splitlines() if output.exists() else []
        measured = [json.loads(line) for line in lines]
        for row in measured if not options.hook else ():
            row["traffic"] = reports.traffic(report_folder, row["bytes"])
    if status != 0:
        print(f"zipccl: the benchmark ended with status {status}", file=sys.stderr)
    if not measured:
        if status == 0:
            print(f"zipccl: no size from {options.smallest} to {options.largest}", file=sys.stderr)
        return status or 1
    rate = environment.get("STANDIN_RATE_MBPS")
    backend = f"stand-in NCCL with {rate} MB/s a link" if rate else "NCCL"
    print(f"# all-gather, {ranks} ranks, {backend}, input {options.input}, medians of {options.iterations} calls, "
          f"{'out of place' if options.out_of_place else 'in place'}")
    print(_hook_table(measured) if options.hook else _table(measured))
    if options.json:
        record = {"benchmark": "all-gather", "ranks": ranks, "backend": backend, "input": options.input,
                  "rows": measured}
        pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    wrong = any(row[side]["wrong"] for row in measured if not options.hook for side in ("native", "zipccl"))
    return status or int(wrong)


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


def positive(text):
    """Type of an option: a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)


def _add_common_arguments(parser, largest, factor):
    parser.add_argument("-b", dest="smallest", default="1M", metavar="BYTES", help="smallest size (1M)")
    parser.add_argument("-e", dest="largest", default=largest, metavar="BYTES", help=f"largest size ({largest})")
    parser.add_argument("-f", dest="factor", default=factor, metavar="N", help=f"factor between sizes ({factor})")
    parser.add_argument("-n", dest="iterations", type=int, metavar="N", default=20, help="timed calls a size (20)")
    parser.add_argument("-w", dest="warm_up", type=int, metavar="N", default=5, help="calls before (5)")
    parser.add_argument("-J", dest="json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--data", type=pathlib.Path, metavar="DIR", default=paths.RECORDED,
                        help="folder of recorded tensors")


def add_codec_arguments(parser):
    _add_common_arguments(parser, "1G", "4")
    parser.add_argument("--input", metavar="KIND", default="recorded",
                        help="normal, random, zeros or recorded (recorded)")
    parser.add_argument("--pool-fraction", type=int, metavar="UNITS", help="room of a message, per 256 tiles")


def add_all_gather_arguments(parser):
    _add_common_arguments(parser, "256M", "2")
    parser.add_argument("-i", dest="increment", metavar="BYTES", help="step between sizes, instead of -f")
    parser.add_argument("-g", dest="gpus", type=positive, metavar="N", help="same as --ranks")
    parser.add_argument("-c", dest="check", type=int, choices=(0, 1), default=1, help="compare every byte (1)")
    parser.add_argument("-d", dest="type", metavar="TYPE", default="bfloat16", help="data type (bfloat16)")
    parser.add_argument("-o", dest="operator", metavar="OP", help="ignored: an all-gather has no reduction")
    parser.add_argument("--input", metavar="KIND", default="recorded",
                        help="normal, random, zeros or recorded[:PREFIX of file names] (recorded:weights)")
    parser.add_argument("--ranks", type=positive, metavar="N", help="processes (2, or one a GPU)")
    parser.add_argument("--share-gpu", action="store_true", help="let ranks share GPUs although there are enough")
    parser.add_argument("--out-of-place", action="store_true", help="separate send buffers (default: in place)")
    parser.add_argument("--hook", action="store_true", help="price the interception of calls that stay native instead")
    parser.add_argument("--no-preload", action="store_true", help="native against native: the noise")
    parser.add_argument("--standin", action="store_true", help="the stand-in NCCL although there is a GPU")
    parser.add_argument("--lib", metavar="PATH", help="libzipccl.so to preload")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="limit of the whole run")
