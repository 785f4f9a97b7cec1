"""libzipccl.so preloaded into whole processes, on the stand-in NCCL: the library itself, how it is loaded and finds NCCL,
and what its variables do.

    preload_test.py --build FOLDER [unittest arguments]
"""

import os
import shutil
import subprocess

import launch
import preload_case

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


class Library(preload_case.Case):
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
        environment = {**os.environ, "LD_LIBRARY_PATH": str(preload_case.BUILD / "test/integration/null")}
        times = []
        for preload in ("", str(self.zipccl)):
            text = subprocess.check_output([preload_case.BUILD / "test/integration/preload-cost"], text=True,
                                           env={**environment, "LD_PRELOAD": preload})
            times.append({line.split()[0]: float(line.split()[1]) for line in text.splitlines()})
        for name, plain in times[0].items():
            added = times[1][name] - plain
            print(f"added to {name}: {added:.1f} ns")
            self.assertLess(added, 500, name)


class Loading(preload_case.Case):
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
        environment = {**self.environment, "LD_LIBRARY_PATH": str(preload_case.BUILD / "test/integration/lacking")}
        (result,) = launch.run([preload_case.BUILD / "test/integration/preload-cost"], 1, environment, self.folder)
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


class Configuration(preload_case.Case):
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
        results = self.launch("all-gather", NCCL_COMM_ID=self.comm_id())
        self.assert_native(results, "NCCL_COMM_ID is set")


if __name__ == "__main__":
    preload_case.main()
