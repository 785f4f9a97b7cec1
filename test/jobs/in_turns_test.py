"""Tests of `zipccl ab --in-turns`: two jobs of several ranks each that do their steps in turn, and what ends them."""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "test" / "jobs"))

import turns  # noqa: E402
from processes import is_running  # noqa: E402
from zipccl_cli import job_runs  # noqa: E402
from zipccl_cli.one_gpu import END_SIGNALS  # noqa: E402

RANKS = 3
JOB = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import turns
side = "on" if os.environ.get("ZIPCCL_REPORT") else "off"
folder, ending = sys.argv[2:4]
open(f"{folder}/process-{os.getpid()}", "w").close()
if ending == "takes none":
    print("step 1 loss 1.5 time_ms 1.0")
    sys.exit(0)
def note(text):
    with open(f"{folder}/order", "a") as order:
        order.write(text + "\\n")
in_turn = turns.Turns(int(os.environ["WORLD_SIZE"]))
for step in range(1, 6):
    try:
        with in_turn.turn():
            note(f"{side} {step} begins")
            time.sleep(0.002 * (1 + int(os.environ["RANK"])))
            note(f"{side} {step} ends")
            if ending == "catches" and step == 2 and os.environ["RANK"] == "1":
                raise RuntimeError
    except RuntimeError:
        pass
    print(f"step {step} loss 1.5 time_ms 1.0", flush=True)
    if step == 3 and ending == f"{side} fails":
        print("a traceback", flush=True)
        sys.exit(7)
    if step == 3 and ending == f"{side} ends early":
        break
if "fails" in ending or ending == "hangs":
    time.sleep(60)
"""


def heed_signals():
    """Under nohup or in a shell's background some would be ignored, by the command as well."""
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class InTurns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, ending):
        return [sys.executable, ROOT / "scripts" / "zipccl", "ranks", str(RANKS), "--", sys.executable, "-c", JOB,
                ROOT / "test" / "jobs", self.folder, ending]

    def pair(self, ending, timeout=50):
        options = argparse.Namespace(timeout=timeout, parse="job", repeat=1)
        [runs] = job_runs.in_turns(options, self.command(ending), "", self.folder)
        self.assertEqual([run.side for run in runs], ["off", "on"])
        return runs

    def statuses(self, ending, **options):
        return [run.status for run in self.pair(ending, **options)]

    def all_ended(self):
        deadline = time.monotonic() + 20
        processes = [each.name.split("-")[1] for each in self.folder.glob("process-*")]
        self.assertTrue(processes)
        while any(is_running(process) for process in processes):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def has_each_step_to_itself(self):
        order = (self.folder / "order").read_text().splitlines()
        turns_taken = [order[at : at + 2 * RANKS] for at in range(0, len(order), 2 * RANKS)]
        self.assertEqual([{line.rsplit(" ", 1)[0] for line in turn} for turn in turns_taken],
                         [{f"{side} {step}"} for step in range(1, 6) for side in ("off", "on")])

    def test_every_step_has_the_machine_to_itself(self):
        self.assertEqual(self.statuses("ends"), [0, 0])
        self.has_each_step_to_itself()

    def test_a_step_that_throws_ends_its_turn(self):
        self.assertEqual(self.statuses("catches"), [0, 0])
        self.has_each_step_to_itself()

    def test_who_is_left_goes_on_alone(self):
        for side in job_runs.SIDES:
            runs = self.pair(f"{side} ends early")
            self.assertEqual([run.status for run in runs], [0, 0])
            self.assertEqual([len(run.parsed.results) for run in runs],
                             [3 if run.side == side else 5 for run in runs])

    def test_a_failure_ends_both_and_is_known_from_its_victim(self):
        started = time.monotonic()
        self.assertEqual(self.statuses("off fails"), [7, job_runs.STOPPED])
        self.assertEqual(self.statuses("on fails"), [job_runs.STOPPED, 7])
        self.assertLess(time.monotonic() - started, 50)
        self.all_ended()

    def test_the_limit_is_for_both(self):
        self.assertEqual(self.statuses("hangs", timeout=2), [124, 124])
        self.all_ended()

    def test_a_job_that_takes_no_turns_is_refused(self):
        with self.assertRaisesRegex(job_runs.NoTurns, "took no turns"):
            self.pair("takes none")
        self.all_ended()

    def compare(self, *arguments, script=None):
        library = self.folder / "library"
        library.touch()
        return subprocess.Popen(
            [sys.executable, ROOT / "scripts" / "zipccl", "ab", "--lib", library, "--in-turns", "--repeat", "1",
             *arguments, "--", *(script or self.command("hangs"))], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "TMPDIR": str(self.folder)}, start_new_session=True,
            preexec_fn=heed_signals)

    def test_the_log_of_the_one_that_failed_is_shown(self):
        output, _ = self.compare(script=self.command("on fails")).communicate(timeout=50)
        self.assertIn("a traceback", output)
        self.assertIn("zipccl: run 2 (on): the run ended with status 7; its log ends as above", output)
        self.assertNotIn("run 1 (off): the run", output)

    def test_signals_leave_nothing_behind(self):
        for number in END_SIGNALS:
            process = self.compare()
            while len(list(self.folder.glob("process-*"))) < 2 * RANKS:
                time.sleep(0.05)
            os.killpg(process.pid, number)
            process.communicate(timeout=50)
            self.assertEqual(process.returncode, 128 + number)
            self.all_ended()
            self.assertEqual(list(self.folder.glob("zipccl-*")), [])
            for each in self.folder.glob("process-*"):
                each.unlink()

    def test_a_shell_script_takes_its_job_along(self):
        script = self.folder / "job.sh"
        words = " ".join(f"'{word}'" for word in self.command("hangs")[:-4])
        script.write_text(f"{words} \"$@\"\necho done\n")
        process = self.compare("--timeout", "2", script=["sh", script, *self.command("hangs")[-4:]])
        process.communicate(timeout=50)
        self.assertEqual(process.returncode, 1)
        self.all_ended()


class Turns(unittest.TestCase):
    def test_without_the_variable_nobody_waits(self):
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("JOB_TURNS", None)
            in_turn = turns.Turns(2)
            for _ in range(3):
                with in_turn.turn():
                    pass

    def test_another_value_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            for value in ("x", ":0", f"{folder}/file:2", f"{folder}/file:", f"{folder}:0", "/dev/null:1"):
                with unittest.mock.patch.dict(os.environ, JOB_TURNS=value), self.assertRaises(ValueError):
                    turns.Turns(2)


if __name__ == "__main__":
    unittest.main()
