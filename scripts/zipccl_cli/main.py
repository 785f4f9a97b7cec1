"""Command line of zipccl."""

import argparse
import os
import signal
import sys

from zipccl_cli import ab, ablation, one_gpu, paths, perf
from zipccl_cli.option_types import count, positive, seconds


def split_command(arguments):
    """Splits at the first `--`: (options, command)."""
    if "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return arguments, []


def run_command(options, command):
    environment = {**os.environ, "LD_PRELOAD": paths.with_preload(paths.library(options.lib))}
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:  # names the last folder of PATH
        raise OSError(error.errno, error.strerror, command[0]) from error


def ranks_command(options, command):
    return one_gpu.run(command, options.ranks, share=True if options.share_gpu else None, timeout=options.timeout)


def parser():
    top = argparse.ArgumentParser(prog="zipccl", description="Lossless compression of NCCL's all-gathers, "
                                  "all-to-alls and point to point.")
    commands = top.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a job with zipccl: zipccl run -- COMMAND")
    run.add_argument("--lib", metavar="PATH", help="libzipccl.so to preload")
    run.set_defaults(call=run_command, takes_command=True)

    compare = commands.add_parser("ab", help="run a job without and with zipccl, one by one: zipccl ab -- COMMAND")
    compare.add_argument("--repeat", type=positive, metavar="N", default=3, help="runs of each kind (3)")
    compare.add_argument("--parse", default="auto", metavar="FORMAT", help="torchtitan, megatron, job, auto, or a "
                         "regular expression with the groups step, loss and time_ms (auto)")
    compare.add_argument("--skip-steps", type=count, metavar="N", default=2,
                         help="first steps to leave out of the times (2)")
    compare.add_argument("--json", metavar="FILE", help="write everything as JSON")
    compare.add_argument("--reports", metavar="DIR", help="keep the last run's reports here")
    compare.add_argument("--must-compress", action="store_true", help="fail if no call was compressed")
    compare.add_argument("--in-turns", action="store_true", help="run both at once, their steps in turn: for jobs of "
                         "one machine that wait for their turn (test/jobs/turns.py)")
    compare.add_argument("--lib", metavar="PATH", help="libzipccl.so to preload")
    compare.add_argument("--timeout", type=seconds, metavar="SECONDS", help="limit of one run, with --in-turns of "
                         "two")
    compare.set_defaults(call=ab.main, takes_command=True)

    ranks = commands.add_parser("ranks", help="start ranks on this machine, several on one GPU if need be: "
                                "zipccl ranks N -- COMMAND")
    ranks.add_argument("ranks", type=positive, metavar="N", help="number of ranks")
    ranks.add_argument("--share-gpu", action="store_true", help="let ranks share GPUs although there are enough")
    ranks.add_argument("--timeout", type=seconds, metavar="SECONDS", help="limit of the job")
    ranks.set_defaults(call=ranks_command, takes_command=True)

    for subcommand in (run, compare, ranks):
        subcommand.usage = subcommand.format_usage().removeprefix("usage: ").rstrip() + " -- COMMAND"

    measure = commands.add_parser("perf", help="benchmarks (all-gather, all-to-all, send-recv, ablation, codec); sizes "
                                  "are bytes or have a suffix K, M or G")
    benchmarks = measure.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, add_arguments, meaning in (
            ("all-gather", perf.add_all_gather_arguments, "the total output"),
            ("all-to-all", perf.add_all_to_all_arguments, "what one rank sends, itself included"),
            ("send-recv", perf.add_send_recv_arguments, "one message")):
        benchmark = benchmarks.add_parser(name, help=f"native and compressed in turn; sizes are of {meaning}")
        add_arguments(benchmark)
        benchmark.set_defaults(call=lambda options, _: perf.collective(options), takes_command=False)
    modes = benchmarks.add_parser("ablation", help="an all-gather in every exchange mode, or an all-to-all compressed and "
                                  "in two parts, beside native, with the ranks in step and with the last one late: "
                                  "zipccl perf ablation all-gather|all-to-all")
    perf.add_ablation_arguments(modes)
    modes.set_defaults(call=lambda options, _: ablation.ablation(options), takes_command=False)
    codec = benchmarks.add_parser("codec", help="encode and decode on one GPU")
    perf.add_codec_arguments(codec)
    codec.set_defaults(call=lambda options, _: perf.codec(options), takes_command=False)
    return top


def _interrupt(number, _):
    raise KeyboardInterrupt(number)


def main(arguments):
    for number in (signal.SIGHUP, signal.SIGTERM):  # jobs, daemons and folders are cleaned up on the way out
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup does
            signal.signal(number, _interrupt)
    arguments, command = split_command(arguments)
    try:
        top = parser()
        options, unknown = top.parse_known_args(arguments)
        if unknown:
            hint = "; write the command after --" if options.takes_command and not command else ""
            top.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        if options.takes_command and not command:
            top.error("no command: write it after --")
        return options.call(options, command)
    except OSError as error:
        print(f"zipccl: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 2
    except (paths.Missing, ValueError) as error:
        print(f"zipccl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
