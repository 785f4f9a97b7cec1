"""Runs of a job without and with zipccl in fresh processes: one after the other, or both at once, steps in turn."""

import contextlib
import os
import signal
import subprocess
import time

from zipccl_cli import logs, one_gpu, paths

SIDES = ("off", "on")
STOPPED = -1  # status of a run that was ended because the one beside it had failed
GRACE_SECONDS = 30  # between SIGTERM and SIGKILL: more than ranks get from their launcher
ORPHANS_SECONDS = 5  # for what a launcher leaves behind; a container may have nobody who reaps it


class NoTurns(ValueError):
    """A job that both ran at once, instead of waiting for its turns."""


class Run:
    """One execution of the job."""

    def __init__(self, side, number, status, seconds, parsed, log):
        self.side, self.number, self.status, self.seconds = side, number, status, seconds
        self.parsed, self.log = parsed, log


def one_by_one(options, command, library, folder):
    """Yields one list of one run after the other."""
    for number in range(1, 2 * options.repeat + 1):
        yield execute([(SIDES[(number - 1) % 2], number)], command, options, library, folder)


def in_turns(options, command, library, folder):
    """Yields pairs of runs at the same time, each of which waits for its turn before every step
    (test/jobs/turns.py)."""
    for first in range(1, 2 * options.repeat, 2):
        turns = folder / f"turns-{first}"
        turns.touch()
        with one_gpu.mps() as variables:  # one daemon for both
            yield execute([(side, first + index) for index, side in enumerate(SIDES)], command, options, library,
                          folder, turns, variables)


def execute(jobs, command, options, library, folder, turns=None, variables=None):
    """Runs the `jobs`, pairs of side and number, at once, in an environment with `variables` more. `turns`: the file by
    which they take turns."""
    started, processes = time.monotonic(), []
    with contextlib.ExitStack() as stack:
        came = stack.enter_context(one_gpu.signals_held())
        for index, (side, number) in enumerate(jobs):
            report_folder = folder / f"reports-{number}"
            report_folder.mkdir(exist_ok=True)
            output = stack.enter_context(_log(folder, side, number).open("w"))
            environment = {**_environment(side, library, report_folder), **(variables or {})}
            if turns is not None:
                environment["JOB_TURNS"] = f"{turns}:{index}"
            processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment,
                                              start_new_session=True))
            stack.callback(_stop, processes[-1])
        ended = _wait(processes, options.timeout, came, turns)
    runs = []
    for (side, number), (status, at) in zip(jobs, ended):
        log = _log(folder, side, number)
        parsed = logs.parse(log.read_text(errors="replace").splitlines(), options.parse)
        runs.append(Run(side, number, status, at - started, parsed, log))
    return runs


def _log(folder, side, number):
    return folder / f"{side}-{number}.log"


def _environment(side, library, report_folder):
    environment = dict(os.environ)
    environment.pop("JOB_TURNS", None)  # of an ab around this one, for whose turns this job would wait
    if side == "on":
        environment["LD_PRELOAD"] = paths.with_preload(library)
        environment["ZIPCCL_REPORT"] = str(report_folder)
    else:
        environment.pop("ZIPCCL_REPORT", None)
        environment["LD_PRELOAD"] = paths.without_preload()
        if not environment["LD_PRELOAD"]:
            del environment["LD_PRELOAD"]
    return environment


def _wait(processes, timeout, came, turns):
    """Status and time of each process's end. When one has ended well nobody waits for its turn any more; when one has
    failed the others end, too."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ended = [None] * len(processes)
    while None in ended:
        time.sleep(0.05)
        late = came or (deadline is not None and time.monotonic() > deadline)
        failed = any(end and end[0] for end in ended)
        for index, process in enumerate(processes):
            if ended[index] is not None:
                continue
            status = process.poll()
            if status is None and (late or failed):
                _stop(process)
                status = 124 if late else STOPPED
            if status is not None:
                ended[index] = status, time.monotonic()
            if status == 0 and turns is not None:
                _end_turns(turns)
    return ended


def _end_turns(turns):
    with contextlib.suppress(FileNotFoundError):
        taken = turns.stat().st_size
        turns.unlink()
        if not taken:
            raise NoTurns("--in-turns: the job took no turns, so that both ran at once; its script must wait for its "
                          "turn before every step, as test/jobs/turns.py says, or leave the flag out")


def _stop(process):
    """Ends what still runs of a job: also what a shell script has started, which does not end with it."""
    started = time.monotonic()
    if not one_gpu.signal_group(process, signal.SIGTERM):
        return
    ended = None
    while one_gpu.signal_group(process, 0):
        now = time.monotonic()
        if ended is None and process.poll() is not None:
            ended = now
        if now - started > GRACE_SECONDS or (ended is not None and now - ended > ORPHANS_SECONDS):
            one_gpu.signal_group(process, signal.SIGKILL)
            break
        time.sleep(0.05)
    process.wait()
