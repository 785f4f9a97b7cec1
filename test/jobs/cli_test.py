"""Tests of the zipccl command that need no build: log formats, verdicts, the rank launcher."""

import argparse
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
sys.path.insert(0, str(ROOT / "test" / "jobs"))

import count_tests  # noqa: E402
import summary  # noqa: E402
import text  # noqa: E402
from processes import is_running  # noqa: E402
from zipccl_cli import ab, ablation, job_runs, logs, main, one_gpu, paths, reports, table  # noqa: E402

TORCHTITAN = ("[rank0]:[titan] 2026-11-01 10:00:00,000 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss}  "
              "\x1b[38mgrad_norm:  1.2345  \x1b[33mmemory:  1.00GiB(0.72%)  \x1b[34mtps: {tps}  \x1b[36mtflops: 3.0  "
              "\x1b[35mmfu: 0.30%\x1b[39m")
MEGATRON = (" [2026-11-01 10:00:00] iteration {step:8}/      20 | consumed samples:           32 | elapsed time per "
            "iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 12.3 | learning rate: 1.0E-04 | global batch "
            "size:     2 | lm loss: {loss} | loss scale: 1.0 | grad norm: 3.210 | number of skipped iterations:   0 |")


class Logs(unittest.TestCase):
    def test_job_lines_behind_a_rank_and_hashes(self):
        parsed = logs.parse(["[0] step 1 loss 10.446783065795898 time_ms 917.331", "[1] rank 1 done",
                             "[0] step 2 loss 8.2312746047973633 time_ms 86.882",
                             "[0] parameters sha256 " + "ab" * 32])
        self.assertEqual(parsed.results, {1: ["10.446783065795898"], 2: ["8.2312746047973633"]})
        self.assertEqual(parsed.times, {1: 917.331, 2: 86.882})
        self.assertEqual(parsed.hashes, {"parameters": "ab" * 32})

    def test_torchtitan_with_colours(self):
        parsed = logs.parse([TORCHTITAN.format(step=3, loss="7.12345", tps="12,500")])
        self.assertEqual(parsed.results, {3: ["7.12345 norm 1.2345"]})
        self.assertEqual(parsed.times, {3: 80.0})

    def test_megatron(self):
        parsed = logs.parse([MEGATRON.format(step=4, ms="153.7", loss="1.046E+01")])
        self.assertEqual(parsed.results, {4: ["1.046E+01 norm 3.210"]})
        self.assertEqual(parsed.times, {4: 153.7})

    def test_ranks_that_print_in_another_order_agree(self):
        line = "[{}] step 1 loss {} time_ms 1.0"
        one = logs.parse([line.format(0, "2.5"), line.format(1, "3.5")])
        other = logs.parse([line.format(1, "3.5"), line.format(0, "2.5")])
        self.assertTrue(one.same_results(other))

    def test_own_expression(self):
        parsed = logs.parse(["it=7 L=0.25"], r"it=(?P<step>\d+) L=(?P<loss>\S+)")
        self.assertEqual(parsed.results, {7: ["0.25"]})
        self.assertIsNone(parsed.median_time(0))
        with self.assertRaises(ValueError):
            logs.parse([], "loss (.*)")

    def test_median_leaves_out_the_first_steps(self):
        parsed = logs.parse([f"step {n} loss 1 time_ms {t}" for n, t in ((1, 900), (2, 10), (3, 12), (4, 11))])
        self.assertEqual(parsed.median_time(1), 11)


def run_of(side, number, losses, milliseconds=10.0, digest="0" * 16):
    lines = [f"step {step} loss {loss} time_ms {milliseconds}" for step, loss in enumerate(losses, 1)]
    return job_runs.Run(side, number, 0, 1.0, logs.parse([*lines, f"parameters hash {digest}"]), None)


class Verdicts(unittest.TestCase):
    def test_identical(self):
        runs = [run_of("off", 1, ["1.5", "1.25"], 20.0), run_of("on", 2, ["1.5", "1.25"], 10.0)]
        result = ab.summarize(runs, 0)
        self.assertIs(result["identical"], True)
        self.assertEqual(result["speedup"], 2.0)
        self.assertIn("identical: 2 losses and 1 hashes in all 2 runs", ab.format_summary(result, None, runs))

    def test_noise_needs_two_runs(self):
        runs = [run_of("off", 1, ["1.5"], 20.0), run_of("on", 2, ["1.5"], 10.0)]
        self.assertIn("noise (spread of the runs without zipccl) unknown: one run",
                      ab.format_summary(ab.summarize(runs, 0), None, runs))
        runs += [run_of("off", 3, ["1.5"], 30.0), run_of("on", 4, ["1.5"], 10.0)]
        self.assertIn("speedup 2.500, noise (spread of the runs without zipccl) 40.0 %",
                      ab.format_summary(ab.summarize(runs, 0), None, runs))

    def test_pairs_of_runs_in_turn(self):
        runs = [run_of("off", 1, ["1.5"], 20.0), run_of("on", 2, ["1.5"], 16.0)]
        self.assertNotIn("pairs", ab.format_summary(ab.summarize(runs, 0), None, runs))
        runs += [run_of("off", 3, ["1.5"], 30.0), run_of("on", 4, ["1.5"], 10.0)]
        result = ab.summarize(runs, 0)
        self.assertEqual(result["speedup_of_pairs"], [1.25, 3.0])
        self.assertIn("pairs of runs: 1.250, 3.000", ab.format_summary(result, None, runs))
        runs.append(run_of("off", 5, ["1.5"], 30.0))  # no pair: its partner is missing
        runs.append(run_of("on", 6, ["1.5"], 0.0))  # printed no times
        self.assertEqual(ab.summarize(runs, 0)["speedup_of_pairs"], [1.25, 3.0])

    def test_progress_names_a_runs_own_time(self):
        self.assertEqual(ab.progress(run_of("off", 1, ["1.5", "1.25"], 20.0), 1), "2 steps of 20.00 ms, 1.0 s")
        self.assertEqual(ab.progress(run_of("on", 2, ["1.5"], 0.0), 0), "1 steps, 1.0 s")  # no time is ever zero

    def test_steps_that_are_all_left_out_are_said(self):
        runs = [run_of("off", 1, ["1.5"]), run_of("on", 2, ["1.5"])]
        self.assertIn("--skip-steps leaves no step over", ab.format_summary(ab.summarize(runs, 1), None, runs))
        self.assertNotIn("--skip-steps", ab.format_summary(ab.summarize(runs, 0), None, runs))

    def test_quartiles_of_steps_in_turn(self):
        runs = [run_of("off", 1, ["1"] * 5, 20.0), run_of("on", 2, ["1"] * 5, 20.0)]
        runs[0].parsed.times = dict(enumerate((20.0, 22.0, 30.0, 24.0, 20.0)))
        runs[1].parsed.times = dict.fromkeys(range(5), 20.0)
        result = ab.summarize(runs, 0, in_turns=True)
        self.assertEqual(result["speedup_of_steps"], [1.0, 1.1, 1.2])
        self.assertIn("speedup of steps in turn: median 1.100, middle half 1.000 to 1.200",
                      ab.format_summary(result, None, runs))
        self.assertIsNone(ab.summarize(runs, 0)["speedup_of_steps"])

    def test_all_to_all_share(self):
        runs = []
        for number, (side, milliseconds) in enumerate((("off", 60.0), ("on", 40.0)), 1):
            lines = [f"step {step} loss 1 time_ms 80.0 all_to_all_ms {milliseconds}" for step in range(3)]
            runs.append(job_runs.Run(side, number, 0, 1.0, logs.parse(lines), None))
        self.assertIn("all-to-all takes 75.0 % of a step without zipccl, 50.0 % with it",
                      ab.format_summary(ab.summarize(runs, 1), None, runs))
        plain = [run_of("off", 1, ["1"]), run_of("on", 2, ["1"])]
        self.assertNotIn("all-to-all", ab.format_summary(ab.summarize(plain, 0), None, plain))

    def test_last_digit_differs(self):
        runs = [run_of("off", 1, ["1.5", "8.2312746047973633"]), run_of("on", 2, ["1.5", "8.2312746047973634"])]
        result = ab.summarize(runs, 0)
        self.assertIs(result["identical"], False)
        self.assertIn("DIFFERENT: run 2 (on): step 2", ab.format_summary(result, None, runs))

    def test_only_the_hash_differs(self):
        runs = [run_of("off", 1, ["1.5"]), run_of("on", 2, ["1.5"], digest="1" * 16)]
        self.assertIs(ab.summarize(runs, 0)["identical"], False)

    def test_a_missing_step_differs(self):
        runs = [run_of("off", 1, ["1.5", "1.25"]), run_of("on", 2, ["1.5"])]
        self.assertIs(ab.summarize(runs, 0)["identical"], False)

    def test_a_job_that_is_not_deterministic_cannot_be_judged(self):
        runs = [run_of("off", 1, ["1.5"]), run_of("on", 2, ["1.5"]), run_of("off", 3, ["1.6"])]
        result = ab.summarize(runs, 0)
        self.assertIsNone(result["identical"])
        self.assertIn("cannot compare", ab.format_summary(result, None, runs))


class TerminatingLock:
    """What subprocess's poll() and wait() take, with a SIGTERM when they first have it."""

    def __init__(self):
        self.lock, self.fresh = threading.Lock(), True

    def acquire(self, blocking=True):
        got = self.lock.acquire(timeout=5) if blocking else self.lock.acquire(False)
        if blocking and not got:
            raise AssertionError("the lock was never released")
        if self.fresh:
            self.fresh = False
            signal.raise_signal(signal.SIGTERM)
        return got

    def release(self):
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class Launcher(unittest.TestCase):
    def run_ranks(self, script, ranks=3, **arguments):
        lines = []
        status = one_gpu.run(["sh", "-c", script], ranks, on_line=lambda rank, line: lines.append((rank, line)),
                             **arguments)
        return status, sorted(lines)

    def test_every_rank_has_its_place(self):
        status, lines = self.run_ranks("echo $RANK $LOCAL_RANK $WORLD_SIZE ${NCCL_HOSTID-none}", share=False)
        self.assertEqual(status, 0)
        self.assertEqual(lines, [(rank, f"{rank} {rank} 3 none") for rank in range(3)])

    def test_ranks_that_share_a_gpu_pass_for_hosts(self):
        _, lines = self.run_ranks("echo $NCCL_HOSTID", share=True)
        self.assertEqual(len({line for _, line in lines}), 3)

    def test_ranks_meet_in_a_folder_that_goes_away(self):
        _, lines = self.run_ranks("test -d $JOB_DIRECTORY && echo $JOB_DIRECTORY", share=False)
        folders = {line for _, line in lines}
        self.assertEqual(len(folders), 1)
        self.assertFalse(pathlib.Path(folders.pop()).exists())

    def test_one_failure_ends_all(self):
        started = time.monotonic()
        status, _ = self.run_ranks("[ $RANK = 1 ] && exit 7; exec sleep 60", share=False)
        self.assertEqual(status, 7)
        self.assertLess(time.monotonic() - started, 20)

    def test_a_signal_counts_as_128_and_its_number(self):
        status, _ = self.run_ranks("[ $RANK = 0 ] && kill -KILL $$; exec sleep 60", share=False)
        self.assertEqual(status, 128 + signal.SIGKILL)

    def test_limit(self):
        status, _ = self.run_ranks("exec sleep 60", share=False, timeout=0.3)
        self.assertEqual(status, 124)

    def test_termination_reaches_grandchildren(self):
        with tempfile.TemporaryDirectory() as folder:
            script = f"sleep 600 & echo $! > {folder}/$RANK; wait"
            launcher = subprocess.Popen([sys.executable, ROOT / "scripts" / "zipccl", "ranks", "2", "--",
                                         "sh", "-c", script])
            files = [pathlib.Path(folder) / str(rank) for rank in range(2)]
            while not all(file.exists() and file.read_text() for file in files):
                time.sleep(0.05)
            launcher.terminate()
            self.assertEqual(launcher.wait(timeout=30), 128 + signal.SIGTERM)
            # They have their signal, from which a process ends a moment later.
            limit = time.monotonic() + 20
            while any(is_running(int(file.read_text())) for file in files):
                self.assertLess(time.monotonic(), limit)
                time.sleep(0.05)


    def terminated(self, act, action):
        """How the processes ended that `action` starts; `act` gets each, before anybody else knows of it, and their
        number, and makes a SIGTERM come."""
        started = []

        def start(*arguments, **options):
            process = real_start(*arguments, **options)
            started.append(process)
            act(process, len(started))
            return process

        real_start = subprocess.Popen
        handler = signal.signal(signal.SIGTERM, main._interrupt)
        try:
            with unittest.mock.patch("subprocess.Popen", start), self.assertRaises(KeyboardInterrupt):
                action()
            return [process.poll() for process in started]
        finally:
            signal.signal(signal.SIGTERM, handler)
            for process in started:
                process.kill()

    def start_ranks(self):
        self.run_ranks("exec sleep 60", share=False)

    def start_job(self):
        with tempfile.TemporaryDirectory() as folder:
            options = argparse.Namespace(timeout=60, parse=None)
            job_runs.execute([("off", 1)], ["sleep", "60"], options, "", pathlib.Path(folder))

    def test_termination_while_a_process_starts_leaves_none_behind(self):
        def terminate_at(last):
            return lambda _, number: number == last and signal.raise_signal(signal.SIGTERM)

        self.assertEqual(self.terminated(terminate_at(2), self.start_ranks), [-signal.SIGTERM] * 3)
        self.assertEqual(self.terminated(terminate_at(1), self.start_job), [-signal.SIGTERM])

    def test_termination_inside_of_a_poll_is_no_deadlock(self):
        def terminate_in_poll(process, number):
            if number == 1:
                process._waitpid_lock = TerminatingLock()

        self.assertEqual(self.terminated(terminate_in_poll, self.start_ranks), [-signal.SIGTERM] * 3)
        self.assertEqual(self.terminated(terminate_in_poll, self.start_job), [-signal.SIGTERM])


class Command(unittest.TestCase):
    def zipccl(self, *arguments, **environment):
        return subprocess.run([sys.executable, ROOT / "scripts" / "zipccl", *arguments], capture_output=True, text=True,
                              env={**os.environ, **environment}, timeout=60, check=False)

    def test_run_names_a_missing_library(self):
        result = self.zipccl("run", "--lib", "/nowhere/libzipccl.so", "--", "true")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("/nowhere/libzipccl.so", result.stderr)

    def test_run_names_a_missing_command(self):
        result = self.zipccl("run", "--lib", __file__, "--", "/nowhere/job", LD_PRELOAD="")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nowhere/job", result.stderr)

    def test_preload_keeps_what_was_there(self):
        self.assertEqual(paths.with_preload("/new/libzipccl.so", {"LD_PRELOAD": "/old/libzipccl.so:/x/libother.so"}),
                         "/new/libzipccl.so /x/libother.so")
        self.assertEqual(paths.without_preload({"LD_PRELOAD": "/old/libzipccl.so"}), "")

    def test_a_failing_job_shows_its_log(self):
        result = self.zipccl("ab", "--lib", __file__, "--repeat", "1", "--", "sh", "-c", "echo went wrong; exit 3")
        self.assertEqual(result.returncode, 1)
        self.assertIn("went wrong", result.stderr)
        self.assertIn("status 3", result.stderr)


class Figures(unittest.TestCase):
    def test_reports_of_several_ranks_add_up(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(2):
                buckets = [{"collective": "all_gather", "from_bytes": 1 << 20, "calls": {"compressed": 3, "small": 1},
                            "raw_bytes": 1000, "wire_bytes": 700, "overflow_bytes": 10},
                           {"collective": "all_gather", "from_bytes": 1 << 10, "calls": {"small": 5}}]
                report = {"communicators": [{"buckets": buckets}]}
                (pathlib.Path(folder) / f"zipccl-host-{rank}.json").write_text(json.dumps(report))
            whole = reports.traffic(folder)
            self.assertEqual((whole["raw_bytes"], whole["wire_bytes"]), (2000, 1400))
            self.assertEqual(whole["routes"], {"compressed": 6, "small": 12})
            self.assertEqual(reports.traffic(folder, [(1 << 20) + 5])["routes"], {"compressed": 6, "small": 2})
            self.assertIsNone(reports.traffic(folder, [1 << 30]))

    def test_ablation_compares_within_processes(self):
        def row(native, zipccl, ratio):
            return {"native": {"us": native, "call_us": 1.0}, "zipccl": {"us": zipccl, "call_us": 2.0},
                    "traffic": ratio and {"ratio": ratio, "wire_bytes": 1}}

        results = {"exact": {late: row(100 + 100 * late, 80 + 100 * late, 1.4) for late in ablation.LATE},
                   "static": {late: row(110 + 110 * late, 55 + 110 * late, None) for late in ablation.LATE}}
        native, exact, static, noise = ablation.format_ablation(results).splitlines()[1:]
        self.assertEqual(native.split()[:4], ["native", "105", "-", "158"])
        self.assertEqual(exact.split()[:5], ["exact", "80", "1.250", "130", "1.154"])
        self.assertEqual(static.split()[-4:], ["1.200", "2.0", "1.0", "native"])
        self.assertIn("9.5 %", noise)

    def test_tables_and_sizes(self):
        self.assertEqual(table.format_table(["a", "bb"], [["ccc", "1"]]), "a    bb\nccc   1")
        self.assertEqual(table.size_text(1536), "1.50 KiB")
        self.assertEqual(table.size_text(3 << 30), "3 GiB")

    def test_test_counts(self):
        lines = [json.dumps({"result": result}) for result in ("OK", "FAIL", "SKIP", "TIMEOUT", "EXPECTEDFAIL")]
        self.assertEqual(count_tests.count(lines), (2, 2, 1))

    def test_step_states(self):
        steps = summary.read(["a\t0\t3\tfigure", "b\t124\t9\t", "c\tskipped\t0\tno tool"])
        self.assertEqual([step["state"] for step in steps], ["ok", "failed (124)", "skipped"])


class Jobs(unittest.TestCase):
    def test_jobs_are_python(self):  # they need GPUs, so that nothing here runs them
        for script in (ROOT / "test" / "jobs").glob("*.py"):
            compile(script.read_text(), str(script), "exec")


class Text(unittest.TestCase):
    def test_tokenizer_falls_back_to_bytes_and_is_deterministic(self):
        sample = "alpha beta alpha\n" * 10 + "gamma"
        tokenizer = text.Tokenizer(sample, vocabulary=text.BYTE_TOKENS + 3)
        self.assertEqual(sorted(tokenizer.ids), ["\n", " ", "alpha"])
        self.assertEqual(tokenizer.encode("alpha b\u00e9"), [tokenizer.ids["alpha"], tokenizer.ids[" "], 98, 195, 169])
        self.assertEqual(text.Tokenizer(sample, 300).ids, text.Tokenizer(sample, 300).ids)

    def test_recorded_slices_match_their_manifest(self):
        folder = ROOT / "test" / "recorded"
        manifest = json.loads((folder / "manifest.json").read_text())
        for tensor in manifest["tensors"]:
            data = (folder / tensor["file"]).read_bytes()
            self.assertEqual(len(data), 2 * tensor["values"], tensor["file"])
            self.assertEqual(hashlib.sha256(data).hexdigest(), tensor["sha256"], tensor["file"])
        self.assertEqual(len(manifest["tensors"]), len(list(folder.glob("*.bf16"))))


if __name__ == "__main__":
    unittest.main()
