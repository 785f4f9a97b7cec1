"""Steps of two jobs in turn, so that `zipccl ab --in-turns` compares steps that were seconds apart, not runs.

In a job whose ranks are all on one machine, on every rank:

    in_turn = turns.Turns(world_size)
    for step in ...:
        with in_turn.turn():
            ...  # the step, up to the synchronisation of the device

JOB_TURNS=FILE:SIDE, set by ab, names a file that both jobs share and says whose turn comes first (0) or second (1).
Each rank appends one byte when it has ended a turn, so the file's size says which turn it is; a rank that leaves out a
turn keeps both jobs waiting. The file is removed when a job has ended: the other one then goes on alone. Without
JOB_TURNS nobody waits."""

import contextlib
import os
import time

POLL_SECONDS = 1e-3  # a waiting rank must not take a core from the job whose turn it is


class Turns:
    def __init__(self, ranks):
        self.path, self.ranks, self.next = "", ranks, 0
        value = os.environ.get("JOB_TURNS")
        if value:
            self.path, _, side = value.rpartition(":")
            another_kind = os.path.exists(self.path) and not os.path.isfile(self.path)
            if side not in ("0", "1") or not self.path or another_kind:  # no file: the other job has ended
                raise ValueError(f"JOB_TURNS={value} is not a file, a colon, and 0 or 1")
            self.next = int(side)

    @contextlib.contextmanager
    def turn(self):
        """Waits until it is this job's turn; the turn ends when all of its ranks have left."""
        self._wait(self.next * self.ranks)
        self.next += 2
        try:
            yield
        finally:
            self._end()

    def _wait(self, ended):
        while self.path:
            try:
                if os.stat(self.path).st_size >= ended:
                    return
            except FileNotFoundError:
                self.path = ""
                return
            time.sleep(POLL_SECONDS)

    def _end(self):
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND)  # appends of several processes do not mix
                os.write(file, b".")
                os.close(file)
