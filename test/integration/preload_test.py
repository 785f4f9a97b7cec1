"""libzipccl.so preloaded into whole processes, on the stand-in NCCL.

    preload_test.py --build FOLDER [unittest arguments]

FOLDER is the build folder. The job (preload_job.cpp) checks all data itself; here is checked how it went there.
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import launch

BUILD = pathlib.Path()

# The list of libzipccl.map, on purpose a second time: what a library exports is a promise.
EXPORTS = """
    ncclAllGather ncclAllReduce ncclAllToAll ncclAlltoAll ncclBcast ncclBroadcast ncclCommAbort ncclCommDeregister ncclCommDestroy
    ncclCommFinalize ncclCommGetAsyncError ncclCommInitAll ncclCommInitRank ncclCommInitRankConfig ncclCommInitRankScalable ncclCommRegister
    ncclCommRevoke ncclCommShrink ncclCommSplit ncclCommWindowDeregister ncclCommWindowRegister ncclGather
    ncclGetUniqueId ncclGroupEnd ncclGroupSimulateEnd ncclGroupStart ncclRecv ncclRedOpDestroy ncclReduce
    ncclReduceScatter ncclScatter ncclSend
""".split()

LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
             "ld-linux-aarch64.so.1"}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="zipccl-preload-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.zipccl = BUILD / "interpose/libzipccl.so"
        self.standin = BUILD / "test/standin"
        self.main = BUILD / "test/integration/preload-main"
        self.job = BUILD / "test/integration/libpreload-job.so"
        self.environment = {
            "LD_PRELOAD": str(self.zipccl),
            "LD_LIBRARY_PATH": str(self.standin),
            "ZIPCCL_MIN_BYTES": "1",
            "ZIPCCL_STAGING_MB": "2",
            "ZIPCCL_START": "now",
            "ZIPCCL_REPORT": str(self.folder),
            "ZIPCCL_DEBUG": "INFO",
        }

    def launch(self, *scenario, ranks=2, scope="local", second=(), per_rank=None, seconds=60, good=True, **environment):
        """Runs a scenario; with `good`, every rank must have ended well."""
        for name, value in environment.items():
            if value is None:
                self.environment.pop(name, None)
            else:
                self.environment[name] = str(value)
        command = [self.main, scope, self.job, *second, "--", *scenario]
        results = launch.run(command, ranks, self.environment, self.folder, per_rank, seconds)
        if good:
            for result in results:
                self.assertEqual(result.status, 0, result)
                self.assertIn("done", result.out)
        return results

    def again(self, *scenario, **environment):
        """Launches a scenario after another of the same test, whose ids and reports are gone."""
        for path in [*self.folder.glob("id*"), *self.folder.glob("zipccl-*.json")]:
            path.unlink()
        return self.launch(*scenario, **environment)

    def reports(self):
        return launch.reports(self.folder)

    def calls(self, rank=0, communicator=0):
        """Calls by route of one rank's communicator."""
        total = collections.Counter()
        for bucket in self.reports()[rank]["communicators"][communicator]["buckets"]:
            total.update(bucket["calls"])
        return dict(total)

    def assert_native(self, results, reason):
        """All communicators of all ranks were native, and every log and report says why."""
        for rank, report in enumerate(self.reports()):
            for communicator in report["communicators"]:
                self.assertEqual(communicator["state"], "native", report)
                self.assertIn(reason, communicator["reason"])
            self.assertIn(reason, results[rank].err)

    def assert_compressed(self):
        for report in self.reports():
            self.assertEqual(report["communicators"][0]["state"], "compressed", report)


class Library(Case):
    def test_exports(self):
        text = subprocess.check_output(["nm", "-D", "--defined-only", self.zipccl], text=True)
        self.assertEqual(sorted(line.split()[-1] for line in text.splitlines()), sorted(EXPORTS))

    def test_needed(self):
        text = subprocess.check_output(["readelf", "-d", self.zipccl], text=True)
        needed = {line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line}
        self.assertLessEqual(needed, LIBRARIES)

    def test_loading_has_no_effect(self):
        """A process that never calls NCCL opens nothing, starts nothing, says nothing."""
        script = "ls /proc/self/fd | wc -l; grep Threads /proc/self/status; ls " + str(self.folder)
        texts = []
        for preload in ("", str(self.zipccl)):
            environment = {**os.environ, **self.environment, "LD_PRELOAD": preload, "ZIPCCL": "nonsense"}
            result = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
            self.assertEqual(result.stderr, "")
            texts.append(result.stdout)
        self.assertEqual(*texts)

    def test_cost_of_a_call_that_is_not_compressed(self):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "test/integration/null")}
        times = []
        for preload in ("", str(self.zipccl)):
            text = subprocess.check_output([BUILD / "test/integration/preload-cost"], text=True,
                                           env={**environment, "LD_PRELOAD": preload})
            times.append({line.split()[0]: float(line.split()[1]) for line in text.splitlines()})
        for name, plain in times[0].items():
            added = times[1][name] - plain
            print(f"added to {name}: {added:.1f} ns")
            self.assertLess(added, 500, name)


class Loading(Case):
    def test_rtld_local(self):
        self.launch("all-gather", scope="local")
        self.assert_compressed()

    def test_rtld_global(self):
        self.launch("all-gather", scope="global")
        self.assert_compressed()

    def test_two_copies(self):
        """The copy that the job calls is used, whatever else is loaded."""
        for scope in ("local", "global"):
            with self.subTest(scope=scope):
                results = self.launch("all-gather", scope=scope, second=[self.standin / "old/libnccl.so.2"])
                self.assertIn(f"{self.standin}/libnccl.so.2 is used, {self.standin}/old/libnccl.so.2 is not",
                              results[0].err)
                self.assert_compressed()
                for file in self.folder.iterdir():
                    file.unlink()

    def test_given_library(self):
        results = self.launch("unique-id", ranks=1, ZIPCCL_NCCL_LIB=self.standin / "old/libnccl.so.2")
        self.assertIn(f"from {self.standin}/old/libnccl.so.2", results[0].err)

    def test_given_library_unreadable(self):
        results = self.launch("all-gather", ZIPCCL_NCCL_LIB="/nonexistent/libnccl.so.2")
        for result in results:
            self.assertEqual(result.err.count("ZIPCCL_NCCL_LIB cannot be used, searching for NCCL instead"), 1)
        self.assert_compressed()

    def test_given_library_is_not_nccl(self):
        results = self.launch("all-gather", ZIPCCL_NCCL_LIB=self.job.parent / "libpreload-nothing.so")
        self.assertIn("is not NCCL", results[0].err)
        self.assert_compressed()

    def test_no_nccl(self):
        shutil.copy(self.job.parent / "libpreload-nothing.so", self.folder / "libnccl.so.2")
        self.environment["LD_LIBRARY_PATH"] = str(self.folder)
        (result,) = launch.run([self.main, "missing"], 1, self.environment, self.folder)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.out, "result 2\nresult 2\n")  # ncclSystemError
        self.assertEqual(result.err.count("no NCCL found"), 1)
        self.assertIn("ZIPCCL_NCCL_LIB", result.err)

    def test_nccl_that_lacks_a_function(self):
        environment = {**self.environment, "LD_LIBRARY_PATH": str(BUILD / "test/integration/lacking")}
        (result,) = launch.run([BUILD / "test/integration/preload-cost"], 1, environment, self.folder)
        self.assertEqual(result.status, 1, result)
        self.assertIn("NCCL 2.18.0", result.err)
        self.assertIn("it lacks ncclSend", result.err)

    def test_old_nccl_without_all_to_all(self):
        results = self.launch("all-to-all", LD_LIBRARY_PATH=self.standin / "old")
        for result in results:
            self.assertIn("alone 0\ngrouped 0\nend 0\n", result.out)
        self.again("all-to-all", LD_LIBRARY_PATH=self.standin / "old", ZIPCCL="off")

    def test_new_nccl_with_all_to_all(self):
        results = self.launch("all-to-all")
        self.assertIn("alone 0\ngrouped 0\nend 0\n", results[0].out)


class Configuration(Case):
    def test_off(self):
        results = self.launch("all-gather", ZIPCCL="off")
        self.assertEqual(self.reports(), [])
        self.assertNotIn("communicator", results[0].err)

    def test_id_is_stamped_only_when_on(self):
        for value, expected in (("on", "stamped"), ("off", "plain")):
            self.assertIn(expected, self.launch("unique-id", ranks=1, ZIPCCL=value)[0].out)

    def test_no_collectives(self):
        results = self.launch("all-gather", ZIPCCL_COLLECTIVES="none")
        self.assert_native(results, "ZIPCCL_COLLECTIVES leaves nothing to compress")

    def test_wrong_value(self):
        results = self.launch("all-gather", ZIPCCL_MIN_BYTES="many", ZIPCCL_DEBUG="WARN")
        self.assert_native(results, "ZIPCCL_MIN_BYTES=many is not accepted; use auto or bytes")
        self.assertEqual(results[0].err.count("ERROR"), 1)

    def test_wrong_value_on_one_rank(self):
        results = self.launch("all-gather", ranks=3, per_rank={1: {"ZIPCCL_POOL": "1025"}})
        self.assert_native(results, "rank 1: ZIPCCL_POOL=1025 is not accepted; use 0 to 1024")

    def test_unknown_variable(self):
        results = self.launch("all-gather", ZIPCCL_COLLECTIVE="none", ZIPCCL_DEBUG="WARN")
        self.assertIn("unknown variable ZIPCCL_COLLECTIVE is ignored; did you mean ZIPCCL_COLLECTIVES?",
                      results[0].err)
        self.assert_compressed()

    def test_one_rank_with_another_configuration(self):
        results = self.launch("all-gather", ranks=3, per_rank={2: {"ZIPCCL_MIN_BYTES": "1M"}})
        self.assert_native(results, "ZIPCCL_MIN_BYTES=1048576, rank 0 has 1")

    def test_one_rank_without_zipccl(self):
        results = self.launch("all-gather", ranks=3, per_rank={1: {"LD_PRELOAD": None}})
        self.assertEqual(len(self.reports()), 2)
        for rank in (0, 2):
            self.assertIn("rank 1 runs without zipccl", results[rank].err)

    def test_first_rank_without_zipccl(self):
        results = self.launch("all-gather", ranks=3, per_rank={0: {"LD_PRELOAD": None}})
        for rank in (1, 2):
            self.assertIn("the process that made its ncclUniqueId runs without zipccl", results[rank].err)

    def test_one_rank_off(self):
        results = self.launch("all-gather", ranks=3, per_rank={1: {"ZIPCCL": "off"}})
        self.assertIn("rank 1 runs without zipccl", results[0].err)

    def test_few_connections(self):
        """CUDA_DEVICE_MAX_CONNECTIONS=1 on one rank makes all-gathers native, unless forced, and nothing else."""
        few = {1: {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
        results = self.launch("all-gather", per_rank=few)
        for rank, result in enumerate(results):
            self.assertIn("all-gathers stay native: CUDA_DEVICE_MAX_CONNECTIONS is 1", result.err)
            self.assertNotIn("compressed", self.calls(rank))
        self.assert_compressed()
        results = self.again("all-gather", per_rank=few, ZIPCCL_COLLECTIVES="allgather")
        self.assert_native(results, "CUDA_DEVICE_MAX_CONNECTIONS is 1")
        for file in self.folder.iterdir():
            file.unlink()
        self.launch("all-gather", per_rank={1: {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, ZIPCCL_IGNORE_MAX_CONNECTIONS=1)
        self.assert_compressed()

    def test_staging_is_the_smallest_of_all_ranks(self):
        self.launch("all-gather", ranks=3, per_rank={1: {"ZIPCCL_STAGING_MB": "1"}})
        self.assert_compressed()
        for report in self.reports():
            self.assertEqual(report["communicators"][0]["staging_bytes"], 1 << 20)

    def test_too_little_staging(self):
        for start in ("now", "fenced"):
            with self.subTest(start=start):
                results = self.again("all-gather", ranks=9, ZIPCCL_STAGING_MB=1, ZIPCCL_START=start)
                self.assert_native(results, "1 MiB of staging are too little for 9 ranks")

    def test_unwritable_report_folder(self):
        results = self.launch("all-gather", ZIPCCL_REPORT="/proc/nonexistent")
        for result in results:
            self.assertEqual(result.err.count("ZIPCCL_REPORT: cannot write"), 1)

    def test_report(self):
        self.launch("all-gather")
        for rank, report in enumerate(self.reports()):
            self.assertEqual(report["nccl"]["version"], "2.28.9")
            self.assertEqual(report["settings"]["ZIPCCL_MIN_BYTES"], "1")
            (communicator,) = report["communicators"]
            self.assertEqual((communicator["rank"], communicator["ranks"], communicator["fate"]),
                             (rank, 2, "destroyed"))
            (bucket,) = communicator["buckets"]
            self.assertEqual(bucket["calls"], {"compressed": 1, "dtype": 1})
            self.assertEqual(bucket["raw_bytes"], 80000)
            self.assertGreater(bucket["ratio"], 1.3)

    def test_log_file(self):
        results = self.launch("all-gather", ZIPCCL_DEBUG_FILE=self.folder / "log-%h-%p")
        self.assertEqual(results[0].err, "")
        logs = list(self.folder.glob("log-*"))
        self.assertEqual(len(logs), 2)
        self.assertRegex(logs[0].read_text(encoding="utf-8"), r"(?m)^\S+:\d+:\d+ \[0\] zipccl INFO communicator ")

    def test_log_file_that_cannot_be_opened(self):
        results = self.launch("all-gather", ZIPCCL_DEBUG_FILE="/proc/nonexistent/log")
        self.assertEqual(results[0].err.count("ZIPCCL_DEBUG_FILE cannot be opened, logging to stderr"), 1)
        self.assertIn("zipccl INFO communicator", results[0].err)

    def test_comm_id_variable(self):
        results = self.launch("all-gather", NCCL_COMM_ID="127.0.0.1:34567")
        self.assert_native(results, "NCCL_COMM_ID is set")


class Lifecycle(Case):
    def test_groups(self):
        self.launch("groups", ranks=3)
        for report in self.reports():
            self.assertEqual([c["state"] for c in report["communicators"]], ["compressed"] * 3)
            self.assertEqual([c["sequence"] for c in report["communicators"]], [1, 1, 1])

    def test_creation_order(self):
        """Ranks may create communicators in a group or singly, each as it likes, and lose no time by it."""
        for exchange in ("static", "exact"):
            with self.subTest(exchange=exchange):
                self.launch("creation-order", ranks=4, seconds=30, ZIPCCL_EXCHANGE=exchange)
                for report in self.reports():
                    self.assertEqual([c["state"] for c in report["communicators"]], ["compressed"] * 4)
                for file in self.folder.iterdir():
                    file.unlink()

    def test_operator_destroyed_in_its_group(self):
        self.launch("operators")
        self.assert_compressed()

    def test_children(self):
        """Halves by ncclCommSplit and the rest of ncclCommShrink compress like their parent."""
        for exchange in ("static", "exact"):
            with self.subTest(exchange=exchange):
                self.again("children", ranks=4, ZIPCCL_EXCHANGE=exchange)
                for rank, report in enumerate(self.reports()):
                    by_name = {c["name"].partition("/")[2]: c for c in report["communicators"]}
                    self.assertEqual(by_name[f"split{rank % 2}"]["ranks"], 2)
                    self.assertEqual(sorted(by_name), sorted(["", f"split{rank % 2}"] + (["shrink"] if rank else [])))
                    for child in by_name.values():
                        self.assertEqual(child["state"], "compressed", child)

    def states(self):
        """States of every rank's communicators by the end of their names."""
        return [{c["name"].partition("/")[2]: c["state"] for c in report["communicators"]} for report in self.reports()]

    def test_families(self):
        """Several splits in one group, orders by key, grandchildren, ranks without a color, parents that end first."""
        self.launch("families", ranks=8)
        expected = [["", f"split{rank % 2}", f"split{7 * (rank // 4)}.1"] for rank in range(8)]
        for rank in range(4, 8):
            expected[rank].append(f"split{rank % 2}/split3")
        self.assertEqual(self.states(), [dict.fromkeys(names, "compressed") for names in expected])
        results = self.again("families", ranks=8, ZIPCCL_START="fenced")  # too few calls to be promoted
        self.assertEqual([list(states) for states in self.states()], expected)
        for rank, result in enumerate(results):
            self.assertEqual(result.err.count("native until calls of at least"), len(expected[rank]), result)

    def test_root_that_takes_no_part(self):
        """The process that knows the parent's secret may end at once: it stays until the others have their child."""
        for _ in range(5):
            self.again("split-and-end", ranks=4)
            self.assertEqual(self.states(), [{"": "compressed"}] + 3 * [{"": "compressed", "split1": "compressed"}])

    def test_children_of_a_native_parent(self):
        results = self.launch("families", ranks=8, per_rank={5: {"LD_PRELOAD": None}})
        self.assertEqual(len(self.reports()), 7)
        for report in self.reports():
            for communicator in report["communicators"]:
                self.assertEqual(communicator["state"], "native")
                self.assertIn("rank 5 runs without zipccl", communicator["reason"])
        self.assertIn("/split0, rank 3 of 4 stays native: its parent is native: rank 5 runs without", results[0].err)
        self.assertEqual(results[0].err.count("WARN"), 1)

    def ends(self, *arguments, **environment):
        environment = {**self.environment, "LD_LIBRARY_PATH": str(BUILD / "test/integration/narrating"), **environment}
        command = [BUILD / "test/integration/preload-ends", *arguments]
        (result,) = launch.run(command, 1, environment, self.folder, seconds=20)
        self.assertEqual(result.status, 0, result)
        return result

    def test_memory_is_freed_only_when_no_abort_can_follow(self):
        """CUDA frees device memory when the device is idle, which a communicator prevents whose abort comes next."""
        lines = self.ends(ZIPCCL_STAGING_MB="1").out.splitlines()
        self.assertNotIn("failed", lines)
        aborted = lines.index("all aborted")
        self.assertEqual(lines[lines.index("created") + 1:aborted], ["abort", "abort", "group end"])
        self.assertEqual(lines[aborted + 1], "group end")  # the new communicators are real before the old ones' memory goes
        destroyed = lines.index("destroy")
        self.assertEqual(set(lines[aborted + 2:destroyed]), {"created", "release"})
        # Each communicator: slots, scratch, summaries, and its overflow port's mapped memory and time stamps.
        self.assertEqual(lines[aborted:].count("release"), 4 * 5)

    def test_abort_while_destroy_waits(self):
        """Destroy waits for work that does not end, and Abort by another thread ends the wait and the communicator."""
        lines = self.ends("abort-while-destroying", NULL_NEVER_DONE="1").out.splitlines()
        self.assertEqual([line for line in lines if line not in ("group end", "release")],
                         ["created", "aborting", "abort", "ended"])

    def test_id_that_nccl_needs_whole(self):
        result = self.ends(NULL_LONG_ID="1")
        self.assertIn("NCCL 2.18.0 uses more of it than zipccl", result.err)
        self.assertIn("stays native", result.err)

    def test_registered_buffers(self):
        self.launch("registered")
        self.assertEqual(self.calls(), {"registered": 1, "compressed": 1})

    def test_nonblocking(self):
        results = self.launch("nonblocking", ranks=3)
        self.assert_native(results, "it is nonblocking")

    def test_nonblocking_by_environment(self):
        results = self.launch("nonblocking", NCCL_COMM_BLOCKING=0)
        self.assert_native(results, "it is nonblocking")

    def test_short_config(self):
        self.launch("short-config")
        self.assert_compressed()

    def test_init_all(self):
        results = self.launch("init-all", ranks=1)
        self.assert_native(results, "ncclCommInitAll made it")

    def test_single_rank(self):
        results = self.launch("all-gather", ranks=1, ZIPCCL_DEBUG="WARN")
        self.assertEqual(results[0].err, "")
        self.assertEqual(self.reports()[0]["communicators"][0]["reason"], "it has one rank")

    def test_churn(self):
        """Open files and memory do not grow with communicators that come and go."""
        for result in self.launch("churn", "150", ZIPCCL_REPORT=None, ZIPCCL_DEBUG="WARN", ZIPCCL_STAGING_MB=1,
                                  seconds=120):
            words = result.out.split()
            self.assertLessEqual(int(words[1]), 0, result)
            self.assertLess(int(words[3]), 65536, result)  # a leak: 400 MiB; some ended staging comes and goes

    def test_fork_and_exec(self):
        self.launch("forks")
        self.assertEqual(len(self.reports()), 2)  # the children wrote none
        self.assertEqual(self.calls(), {"compressed": 2})

    def test_fork_without_agreement(self):
        self.launch("forks", NCCL_COMM_ID="127.0.0.1:34569")
        self.assertEqual(len(self.reports()), 2)
        self.assertEqual(self.calls(), {"closed": 2})


class Faults(Case):
    def killed_rank(self, exchange):
        results = self.launch("killed", ranks=3, good=False, ZIPCCL_EXCHANGE=exchange)
        self.assertEqual(results[2].status, -9)
        for result in results[:2]:
            self.assertEqual(result.status, 0, result)
            self.assertRegex(result.out, r"lost [1-6]\n")
        return results

    def test_killed_rank(self):
        self.killed_rank("static")  # NCCL's own asynchronous error says it

    def test_killed_rank_while_the_host_waits(self):
        for result in self.killed_rank("exact")[:2]:
            self.assertRegex(result.err, r"zipccl ERROR communicator \w+, rank \d: compressed all-gather")

    def test_shrink_after_death(self):
        """The ranks that are left compress, whichever died: the root of a shrink is one of them."""
        for dead in (0, 3):
            results = self.again("shrink-after-death", str(dead), ranks=4, good=False)
            for rank, result in enumerate(results):
                if rank == dead:
                    self.assertEqual(result.status, -9)
                    continue
                self.assertEqual(result.status, 0, result)
                self.assertRegex(result.err, r"/shrink, rank \d of 3: compressed")
                self.assertRegex(result.err, r"/shrink/split0, rank \d of 3: compressed")

    def test_abort_by_another_thread(self):
        results = self.launch("aborted", ranks=3)
        self.assertIn("call 0", results[1].out)  # nothing waits in the call: it is enqueued, and the abort ends it

    def test_abort_of_a_waiting_call(self):
        results = self.launch("aborted", ranks=3, ZIPCCL_EXCHANGE="exact")
        self.assertIn("call 5", results[1].out)
        self.assertIn("communicator aborted", results[1].err)

    def test_real_init_fails(self):
        results = self.launch("all-gather", ranks=2, good=False,
                              STANDIN_FAULT="call=ncclCommInitRank,action=error:3")
        self.assertIn("init result 3", results[0].out)
        for result in results:
            self.assertEqual(result.status, 3, result)
            # A rank that says hello after the first one has ended gets no answer.
            self.assertRegex(result.out, "init result [36]")

    def test_real_all_gather_fails(self):
        """NCCL's own error comes back, and the communicator stays broken."""
        results = self.launch("first-result", STANDIN_FAULT="call=ncclAllGather,action=error:3")
        for result in results:
            self.assertIn("first 3\nsecond 3\n", result.out)

    def test_communicator_that_failed_is_destroyed(self):
        """Destroy does not wait for a chunk that an error of NCCL's cut short."""
        for call in (1, 2):
            fault = f"rank=1,call=ncclAllGather,nth={call},action=error:3"
            results = self.again("failed-destroyed", STANDIN_FAULT=fault, good=False, seconds=30)
            self.assertIn("done", results[1].out, results[1])

    def test_overflow_of_a_last_call(self):
        """A rank may end as soon as its own output is there: its record reaches the others all the same."""
        for scenario in ("last-call-exit", "last-call-destroy"):
            for _ in range(3):
                for result in self.again(scenario, ranks=3):
                    self.assertIn("right", result.out, result)

    def test_overflow_that_dies_with_its_sender(self):
        """The output is wrong then, and a job that asks nothing and only destroys its communicator hears so."""
        for _ in range(20):  # now and then the record is faster than the signal
            results = self.again("last-call-death", good=False, ZIPCCL_STAGING_MB=64)
            self.assertEqual(results[0].status, -9)
            heard = re.search(r"zipccl ERROR communicator \w+, rank 1: a compressed call failed", results[1].err)
            self.assertEqual(heard is not None, "wrong" in results[1].out, results[1])
            if heard is not None:
                return
        self.fail("the record always arrived")


def main():
    global BUILD
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
