"""Steps of two jobs in turn, so that `zipccl ab --in-turns` compares steps that were seconds apart, not runs.

JOB_TURNS=FILE:SIDE, set by ab, names a file that both jobs share and says whose turn comes first (0) or second (1).
Each rank appends one byte when it has ended a turn, so the file's size says which turn it is. The file is removed when
a job ends: the other one then goes on alone. Without JOB_TURNS nobody waits."""

import contextlib
import os
import time

POLL_SECONDS = 1e-3  # a waiting rank must not take a core from the job whose turn it is


class Turns:
    def __init__(self, ranks):
        path, _, side = os.environ.get("JOB_TURNS", "").rpartition(":")
        self.path, self.ranks, self.next = path, ranks, int(side) if path else 0

    @contextlib.contextmanager
    def turn(self):
        """Waits until it is this job's turn; the turn ends when all of its ranks have left."""
        self._wait(self.next * self.ranks)
        yield
        self.next += 2
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND)  # appends of several processes do not mix
                os.write(file, b".")
                os.close(file)

    def _wait(self, ended):
        while self.path:
            try:
                if os.stat(self.path).st_size >= ended:
                    return
            except FileNotFoundError:
                self.path = ""
                return
            time.sleep(POLL_SECONDS)
