"""Communicators of whole processes on the stand-in NCCL, from their creation to their end, the bad ones included.

    lifecycle_test.py --build FOLDER [unittest arguments]
"""

import re

import launch
import preload_case


class Lifecycle(preload_case.Case):
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
        environment = {**self.environment, "LD_LIBRARY_PATH": str(preload_case.BUILD / "test/integration/narrating"), **environment}
        command = [preload_case.BUILD / "test/integration/preload-ends", *arguments]
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
        # Each communicator: slots, scratch, and its overflow port's mapped memory and time stamps.
        self.assertEqual(lines[aborted:].count("release"), 4 * 4)

    def test_abort_while_an_end_waits(self):
        """Destroy and Finalize wait for work that does not end, and Abort by another thread ends the wait and the
        communicator: NCCL hears of nothing else, as its handle is gone."""
        for end in ("destroy", "finalize"):
            for abort in ("alone", "grouped"):
                with self.subTest(end=end, abort=abort):
                    lines = self.ends(end, abort, NULL_NEVER_DONE="1").out.splitlines()
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

    def test_copy_policy_whatever_the_first_communicator_is(self):
        """NCCL reads the variable for the process's first communicator, which ranks need not share."""
        for scenario, ranks in (("all-gather", 1), ("init-all", 1), ("nonblocking", 2)):
            with self.subTest(scenario):
                for result in self.again(scenario, ranks=ranks, ZIPCCL_COPY_ENGINES=1):
                    self.assertIn("policy 2", result.out)
        self.assertIn("policy 0", self.again("all-gather", ranks=1, NCCL_CTA_POLICY=0)[0].out)
        results = self.again("all-gather", ranks=1, NCCL_CTA_POLICY=None, ZIPCCL_COPY_ENGINES=0)
        self.assertNotIn("policy", results[0].out)

    def test_nccl_without_copy_engines(self):
        for version, said in ((22707, True), (22809, False)):
            results = self.again("all-gather", ZIPCCL_COPY_ENGINES=1, STANDIN_VERSION=version)
            for result in results:
                self.assertEqual("no copy engines: NCCL 2.27.7 does not" in result.err, said, result.err)

    def test_copy_engines_without_nvlink(self):
        """What was reserved for them is given back, and calls start as they would without."""
        for result in self.again("all-gather", ZIPCCL_COPY_ENGINES=1, ZIPCCL_START="fenced"):
            self.assertIn("native until calls of at least", result.err)
        for report in self.reports():
            self.assertEqual(report["communicators"][0]["staging_bytes"], 0)
        self.again("all-gather", ZIPCCL_COPY_ENGINES=1, ZIPCCL_START="now")
        self.assert_compressed()

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
        self.launch("forks", NCCL_COMM_ID=self.comm_id())
        self.assertEqual(len(self.reports()), 2)
        self.assertEqual(self.calls(), {"closed": 2})


class Faults(preload_case.Case):
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

    def aborted(self, exchange):
        """Rank 1 of a job in which another thread aborts the communicator that a call is made on."""
        for _ in range(5):
            result = self.again("aborted", ranks=3, ZIPCCL_EXCHANGE=exchange)[1]
            if "call 4" not in result.out:  # on a busy machine the abort may come first
                break
        return result

    def test_abort_by_another_thread(self):
        self.assertIn("call 0", self.aborted("static").out)  # it is enqueued, and the abort ends it

    def test_abort_of_a_waiting_call(self):
        result = self.aborted("exact")
        self.assertIn("call 5", result.out)
        self.assertIn("communicator aborted", result.err)

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


if __name__ == "__main__":
    preload_case.main()
