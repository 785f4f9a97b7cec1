"""Runs the ranks of a job as processes and collects what they say.

A rank is a command with its own environment. All ranks run in sessions of their own, so that a rank that hangs is
killed with everything it started, and the test fails instead of waiting for ever.
"""

import json
import os
import pathlib
import signal
import subprocess
import time


class Rank:
    """What one finished rank process left: exit status (negative: the signal), standard output and error."""

    def __init__(self, status, out, err):
        self.status = status
        self.out = out
        self.err = err

    def __str__(self):
        return f"status {self.status}\n--- out\n{self.out}\n--- err\n{self.err}"


class Hang(AssertionError):
    """Some rank did not end in time."""


def run(command, ranks, environment, folder, per_rank=None, seconds=60):
    """Starts `ranks` copies of `command` and returns a list of Rank.

    `folder` must be fresh: the ranks exchange ids through it. `per_rank` maps a rank to variables of its own; a value
    of None removes a variable.
    """
    folder = pathlib.Path(folder)
    processes = []
    for rank in range(ranks):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("ZIPCCL", "NCCL_"))}
        variables.update(environment)
        variables.update({"RANK": str(rank), "WORLD_SIZE": str(ranks), "ID_DIRECTORY": str(folder)})
        for name, value in (per_rank or {}).get(rank, {}).items():
            if value is None:
                variables.pop(name, None)
            else:
                variables[name] = value
        out = open(folder / f"out{rank}", "w+", encoding="utf-8")
        err = open(folder / f"err{rank}", "w+", encoding="utf-8")
        process = subprocess.Popen(command, env=variables, stdout=out, stderr=err, start_new_session=True)
        processes.append((process, out, err))

    limit = time.monotonic() + seconds
    hung = []
    for rank, (process, _, _) in enumerate(processes):
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            hung.append(rank)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    results = []
    for process, out, err in processes:
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        results.append(Rank(process.returncode, *texts))
    if hung:
        text = "\n".join(f"=== rank {rank}: {result}" for rank, result in enumerate(results))
        raise Hang(f"ranks {hung} did not end within {seconds} s\n{text}")
    return results


def reports(folder):
    """The JSON reports in a folder, in order of the rank of their first communicator."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in pathlib.Path(folder).glob("zipccl-*.json")]
    return sorted(found, key=lambda report: report["communicators"][0]["rank"])
