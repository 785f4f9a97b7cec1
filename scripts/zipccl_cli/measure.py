"""One run of a benchmark of collectives: its ranks in fresh processes, and the rows that they leave."""

import json
import os
import pathlib
import sys
import tempfile

from zipccl_cli import one_gpu, paths, reports

SIDES = ("native", "zipccl")
DEFAULT_STANDIN_RATE = "25"  # megabytes a second


def _backend(options):
    """(benchmark, environment, ranks): the real NCCL where there is a GPU, else the stand-in."""
    gpus = 0 if options.standin else one_gpu.gpu_count()
    ranks = options.ranks or options.gpus or (gpus if gpus > 1 else 2)
    if gpus == 0:
        environment = {"STANDIN_RATE_MBPS": os.environ.get("STANDIN_RATE_MBPS", DEFAULT_STANDIN_RATE)}
        binary = paths.program("collective-perf-standin")
    else:
        binary = paths.program("collective-perf")
        environment = paths.nccl_environment(binary)
    # Compressed from the first call on, not only once a communicator's traffic has shown to be worth it.
    environment["ZIPCCL_START"] = os.environ.get("ZIPCCL_START", "always")
    if options.hook:  # whose rows say which calls are compressed, whatever the link
        environment["ZIPCCL_MIN_BYTES"] = os.environ.get("ZIPCCL_MIN_BYTES", "8M")
    return binary, environment, ranks


def _arguments(options, output):
    arguments = [options.benchmark, "-J", str(output), "-w", str(options.warm_up), "-n", str(options.iterations),
                 "-c", str(options.check), "-d", options.type, "--input", options.input, "--data", str(options.data),
                 "--hook", "1" if options.hook else "0", "-b", options.smallest, "-e", options.largest,
                 "-f", options.factor]
    if options.increment:
        arguments += ["-i", options.increment]
    if options.benchmark == "all-gather":
        arguments += ["--in-place", "0" if options.out_of_place else "1"]
    if options.benchmark != "send-recv":
        arguments += ["--late", options.late, "--graph", str(int(options.graph)),
                      "--hold-back", str(int(options.hold_back))]
    if options.benchmark == "all-to-all":
        arguments += ["--split", options.split, "--grouped", "1" if options.grouped else "0"]
    return arguments


def measure(options, variables=None, arguments=()):
    """Runs the benchmark's ranks in fresh processes, with `variables` in their environment and `arguments` behind those
    that the options make. Returns (status, rows, environment)."""
    binary, environment, ranks = _backend(options)
    environment.update(variables or {})
    if not options.no_preload:
        environment["LD_PRELOAD"] = paths.with_preload(paths.library(options.lib))
    with tempfile.TemporaryDirectory(prefix="zipccl-perf-") as folder:
        output, report_folder = pathlib.Path(folder) / "rows", pathlib.Path(folder) / "reports"
        report_folder.mkdir()
        environment["ZIPCCL_REPORT"] = str(report_folder)
        status = one_gpu.run([str(binary), *_arguments(options, output), *arguments], ranks, environment,
                             share=True if options.share_gpu else None, timeout=options.timeout)
        lines = output.read_text().splitlines() if output.exists() else []
        rows = [json.loads(line) for line in lines]
        one_size = len({row.get("bytes") for row in rows}) == 1
        for row in rows if not options.hook else ():
            row["traffic"] = reports.traffic(report_folder, None if one_size else row["operations"])
    if status != 0:
        print(f"zipccl: the benchmark ended with status {status}", file=sys.stderr)
    elif not rows:
        print(f"zipccl: no size from {options.smallest} to {options.largest}", file=sys.stderr)
        status = 1
    return status, rows, environment


def backend_text(environment):
    rate = environment.get("STANDIN_RATE_MBPS")
    return f"stand-in NCCL with {rate} MB/s a link" if rate else "NCCL"


def wrong_calls(rows):
    return sum(row[side]["wrong"] for row in rows for side in SIDES)
