"""zipccl ab: the same job without and with zipccl, compared."""

import json
import pathlib
import shutil
import statistics
import sys
import tempfile

from zipccl_cli import job_runs, logs, paths, reports
from zipccl_cli.job_runs import SIDES
from zipccl_cli.table import format_table, size_text


def _why_unusable(run):
    if run.status != 0:
        ending = "took too long" if run.status == 124 else f"ended with status {run.status}"
        return f"the run {ending}"
    if not run.parsed.results:
        return "no losses found in its output: name the format with --parse"
    return None


def _side_summary(runs, skip):
    medians = [run.parsed.median_time(skip) for run in runs]
    medians = [median for median in medians if median is not None]
    if not medians:
        return {"runs": len(runs)}
    middle = statistics.median(medians)
    shares = [share for share in (run.parsed.all_to_all_share(skip) for run in runs) if share is not None]
    return {"runs": len(runs), "step_ms": middle, "step_ms_of_runs": medians,
            "all_to_all_share": statistics.median(shares) if shares else None,
            "spread": (max(medians) - min(medians)) / middle if len(medians) > 1 else None}


def _pair_speedups(sides, skip):
    """Each run without zipccl over the run with it that came next: what drifts meanwhile touches one pair alone."""
    medians = [[run.parsed.median_time(skip) for run in sides[side]] for side in SIDES]
    return [off / on for off, on in zip(*medians) if off and on]


def _step_speedups(sides, skip):
    """Quartiles of each step's time without zipccl over the same step's with it, of runs that took turns."""
    ratios = []
    for off, on in zip(sides["off"], sides["on"]):
        steps = sorted(off.parsed.times.keys() & on.parsed.times.keys())[skip:]
        ratios += [off.parsed.times[step] / on.parsed.times[step] for step in steps]
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else None


def summarize(runs, skip, in_turns=False):
    """What all runs together say; pure. `identical`: True, False, or None if the runs without zipccl already differ."""
    sides = {side: [run for run in runs if run.side == side] for side in SIDES}
    reference = sides["off"][0].parsed
    deterministic = all(run.parsed.same_results(reference) for run in sides["off"])
    identical = all(run.parsed.same_results(reference) for run in sides["on"])
    summary = {side: _side_summary(sides[side], skip) for side in SIDES}
    off, on = (summary[side].get("step_ms") for side in SIDES)
    return {
        **summary, "deterministic": deterministic, "identical": identical if deterministic else None,
        "steps": len(reference.results), "hashes": reference.hashes,
        "speedup": off / on if off and on else None, "noise": summary["off"].get("spread"),
        "speedup_of_pairs": _pair_speedups(sides, skip),
        "speedup_of_steps": _step_speedups(sides, skip) if in_turns else None,
    }


def _first_difference(runs):
    reference = next(run for run in runs if run.side == "off").parsed
    for run in runs:
        for step, result in sorted(reference.results.items()):
            other = run.parsed.results.get(step)
            if other != result:
                return f"run {run.number} ({run.side}): step {step} gave {other}, the first run {result}"
        for name, value in reference.hashes.items():
            if run.parsed.hashes.get(name) != value:
                other = run.parsed.hashes.get(name)
                return f"run {run.number} ({run.side}): {name} hash {other}, the first run {value}"
    return "a run printed steps or hashes that the first did not"


def _percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def format_summary(summary, traffic, runs):
    rows = []
    for side in SIDES:
        part = summary[side]
        time_cells = ["-", "-"]
        if "step_ms" in part:
            time_cells = [f"{part['step_ms']:.2f}", _percent(part["spread"])]
        wire = [size_text(traffic[key]) if side == "on" and traffic else "-" for key in ("raw_bytes", "wire_bytes")]
        ratio = f"{traffic['ratio']:.3f}" if side == "on" and traffic and traffic["ratio"] else "-"
        rows.append([side, str(part["runs"]), *time_cells, *wire, ratio])
    header = ["zipccl", "runs", f"ms per {runs[0].parsed.unit}", "spread", "raw bytes", "wire bytes", "ratio"]
    lines = [format_table(header, rows)]
    if all("step_ms" not in summary[side] for side in SIDES) and any(run.parsed.times for run in runs):
        lines.append("no times: --skip-steps leaves no step over")
    if summary["speedup"] is not None:
        noise = "unknown: one run" if summary["noise"] is None else _percent(summary["noise"])
        lines.append(f"speedup {summary['speedup']:.3f}, noise (spread of the runs without zipccl) {noise}")
        if len(summary["speedup_of_pairs"]) > 1:
            lines.append("pairs of runs: " + ", ".join(f"{pair:.3f}" for pair in summary["speedup_of_pairs"]))
        if summary["speedup_of_steps"]:
            low, middle, high = summary["speedup_of_steps"]
            lines.append(f"speedup of steps in turn: median {middle:.3f}, middle half {low:.3f} to {high:.3f}")
    shares = [summary[side].get("all_to_all_share") for side in SIDES]
    if None not in shares:
        lines.append(f"all-to-all takes {_percent(shares[0])} of a {runs[0].parsed.unit} without zipccl, "
                     f"{_percent(shares[1])} with it")
    if summary["identical"]:
        hashes = f" and {len(summary['hashes'])} hashes" if summary["hashes"] else ""
        lines.append(f"identical: {summary['steps']} losses{hashes} in all {len(runs)} runs")
    elif summary["identical"] is None:
        lines.append(f"cannot compare: the runs without zipccl differ among themselves; {_first_difference(runs)}")
    else:
        lines.append(f"DIFFERENT: {_first_difference(runs)}")
    return "\n".join(lines)


def progress(run, skip):
    """How one run went, so that a series that is cut off has still said something."""
    median = run.parsed.median_time(skip)
    each = "" if median is None else f" of {median:.2f} ms"
    return f"{len(run.parsed.results)} steps{each}, {run.seconds:.1f} s"


def _run_all(options, command, library, folder):
    runs = []
    for together in (job_runs.in_turns if options.in_turns else job_runs.one_by_one)(options, command, library, folder):
        for run in together:
            print(f"run {run.number} of {2 * options.repeat}, {run.side}: {progress(run, options.skip_steps)}",
                  file=sys.stderr, flush=True)
        unusable = [(run, why) for run in together if run.status != job_runs.STOPPED and (why := _why_unusable(run))]
        for run, why in unusable:
            tail = run.log.read_text(errors="replace").splitlines()[-20:]
            verdict = f"zipccl: run {run.number} ({run.side}): {why}; its log ends as above"
            print("\n".join(["", *tail, "", verdict]), file=sys.stderr)
        if unusable:
            return runs, False
        runs += together
    return runs, True


def main(options, command):
    logs.parse([], options.parse)  # a wrong expression is found before the first run
    library = paths.library(options.lib)
    # What cannot be written is found before the first run, too.
    if options.reports:
        pathlib.Path(options.reports).mkdir(parents=True, exist_ok=True)
    if options.json:
        paths.writable(options.json)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zipccl-ab-"))
    try:
        runs, complete = _run_all(options, command, library, folder)
        if not complete:
            return 1
        last_reports = folder / f"reports-{runs[-1].number}"
        traffic = reports.traffic(last_reports)
        summary = summarize(runs, options.skip_steps, options.in_turns)
        print(format_summary(summary, traffic, runs))
        compressed = bool(traffic and traffic["wire_bytes"])
        if not compressed:
            print("; ".join(["no call was compressed", *reports.reasons(last_reports)]))
        if options.reports:
            _keep(last_reports, pathlib.Path(options.reports))
        if options.json:
            record = {"command": command, **summary, "traffic": traffic,
                      "runs": [{"side": run.side, "seconds": run.seconds, "times_ms": run.parsed.times,
                                "losses": run.parsed.results, "hashes": run.parsed.hashes} for run in runs]}
            pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
        return 0 if summary["identical"] and (compressed or not options.must_compress) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(source, target):
    for report in source.glob("*.json"):
        shutil.copy(report, target / report.name)
