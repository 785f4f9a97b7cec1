"""Calls that start native and are compressed when it pays, in whole processes on the stand-in NCCL.

    start_test.py --build FOLDER [unittest arguments]
"""

import pathlib

import preload_case


class Case(preload_case.Case):
    """`go` runs the scenario "changing" (preload_start.cpp), by default as a user does, without ZIPCCL_START."""

    def go(self, *words, ranks=8, seconds=120, **environment):
        environment.setdefault("ZIPCCL_START", None)
        return self.again("changing", *words, ranks=ranks, seconds=seconds, **environment)

    def classes(self, communicator=0):
        """The all-gather class of every rank's communicator; their switches must be the same."""
        found = [report["communicators"][communicator]["classes"][0] for report in self.reports()]
        for one in found:
            self.assertEqual(one["switches"], found[0]["switches"])
            self.assertEqual(one["calls"], found[0]["calls"])
        return found

    def states(self):
        return [(one["state"], one.get("pool_bytes")) for one in self.classes()[0]["switches"]]

    def assert_calls(self, **expected):
        for rank in range(len(self.reports())):
            self.assertEqual(self.calls(rank), expected)


class Promotion(Case):
    def test_ordinary_values(self):
        results = self.go("good:60")
        self.assertEqual(self.states(), [("compressed", 1)])
        call = self.classes()[0]["switches"][0]["call"]
        self.assertLessEqual(call, 40)
        self.assert_calls(native=call, compressed=60 - call)
        self.assert_compressed()
        for result in results:
            self.assertEqual(result.err.count("all-gathers are compressed from call"), 1, result.err)

    def test_few_calls_suffice(self):
        self.go("good:12", ranks=2)
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_host_far_ahead(self):
        self.go("good:120", "ahead:12", ranks=3)
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_late_rank(self):
        self.go("good:60", "late:5")
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_groups(self):
        self.go("good:60", "grouped", "communicators:2", ranks=3)
        for communicator in (0, 1):
            self.assertEqual(len(self.classes(communicator)[0]["switches"]), 1)

    def test_rank_that_simulates(self):
        """Only calls that are made count, or the ranks would number them differently."""
        self.go("good:60", "simulates@1", ranks=3)
        self.assertEqual(self.states(), [("compressed", 1)])
        self.assertEqual(self.classes()[1]["calls"], 60)

    def test_exact(self):
        self.go("good:60", ranks=4, ZIPCCL_EXCHANGE="exact")
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_room_that_the_values_need(self):
        self.go("wide:60", ranks=4)
        self.assertEqual(self.states(), [("compressed", 64)])
        for report in self.reports():
            self.assertEqual(report["communicators"][0]["exchange"]["overflow_messages"], 0)

    def test_room_that_the_user_names(self):
        self.go("good:60", ranks=2, ZIPCCL_POOL=7)
        self.assertEqual(self.states(), [("compressed", 7)])

    def test_incompressible_values(self):
        self.go("random:250", ranks=4)
        for report in self.reports():
            (communicator,) = report["communicators"]
            self.assertEqual(communicator["state"], "native")
            self.assertIn("do not compress well enough", communicator["reason"])
            self.assertEqual(communicator["staging_bytes"], 0)
        self.assertEqual(self.states(), [])
        self.assert_calls(native=250)

    def test_one_rank_with_incompressible_values(self):
        self.go("random@3:60")
        self.assertEqual(self.states(), [])
        reasons = [one["reason"] for one in self.classes()]
        self.assertIn("do not compress well enough", reasons[3])
        self.assertEqual(reasons[0], "the other ranks are not ready")

    def test_values_that_become_compressible(self):
        self.go("random:10", "good:120", ranks=4)
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_small_calls_reserve_nothing(self):
        self.go("good:20", ranks=3, ZIPCCL_MIN_BYTES="1G")
        for report in self.reports():
            self.assertEqual(report["communicators"][0]["staging_bytes"], 0)
        self.assert_calls(small=20)

    def test_staging_is_the_smallest_of_all_ranks(self):
        self.launch("changing", "good:60", ranks=3, ZIPCCL_START=None, ZIPCCL_STAGING_MB=2,
                    per_rank={1: {"ZIPCCL_STAGING_MB": "1"}})
        self.assertEqual(self.states(), [("compressed", 1)])
        for report in self.reports():
            self.assertEqual(report["communicators"][0]["staging_bytes"], 1 << 20)

    def test_many_communicators_share_the_cap(self):
        """The stand-in's device has the machine's memory; all communicators together may take a fiftieth of it."""
        pages = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
        cap = min(int(pages.split("MemTotal:")[1].split()[0]) * 1024 // 50, 1 << 30)
        default = 128 << 20
        for wanted in (default, 2 * default):
            with self.subTest(wanted=wanted):
                self.go("good:40", "communicators:24", "count:5000", ranks=2, ZIPCCL_STAGING_MB=wanted >> 20)
                for report in self.reports():
                    sizes = [communicator["staging_bytes"] for communicator in report["communicators"]]
                    states = [communicator["state"] for communicator in report["communicators"]]
                    self.assertEqual(len(sizes), 24)
                    self.assertLessEqual(sum(sizes), cap)
                    if wanted == default:
                        self.assertEqual(states, ["compressed"] * 24)
                    else:  # each takes what the user says, while there is some
                        self.assertEqual(max(sizes), min(wanted, cap))
                        self.assertEqual([state == "compressed" for state in states], [size > 0 for size in sizes])

    def test_one_rank_that_starts_otherwise(self):
        results = self.launch("all-gather", ranks=3, per_rank={1: {"ZIPCCL_START": "fenced"}})
        self.assert_native(results, "ZIPCCL_START=fenced, rank 0 has now")


class Change(Case):
    def test_values_that_become_incompressible(self):
        for start in (None, "now"):
            with self.subTest(start=start):
                self.go("good:50", "random:100", ranks=4, ZIPCCL_START=start)
                self.assertEqual(self.states()[-1], ("native", None))
                self.assertLessEqual(self.classes()[0]["switches"][-1]["call"], 50 + 40)

    def test_incompressible_values_from_the_first_call_on(self):
        self.go("random:100", ranks=4, ZIPCCL_START="now")
        self.assertEqual(self.states(), [("native", None)])
        self.assertLessEqual(self.classes()[0]["switches"][0]["call"], 40)

    def test_one_rank_whose_values_become_incompressible(self):
        self.go("good:50", "random@2:100", ranks=4)
        self.assertEqual(self.states()[-1], ("native", None))

    def test_values_that_need_more_room(self):
        for start, before in ((None, [("compressed", 1)]), ("now", [])):
            with self.subTest(start=start):
                self.go("good:50", "wide:100", ranks=4, ZIPCCL_START=start)
                self.assertEqual(self.states(), before + [("compressed", 64)])

    def test_rare_overflow_changes_nothing(self):
        phases = [word for _ in range(4) for word in ("good:24", "random:1")]
        self.go(*phases, ranks=3, ZIPCCL_START="now")
        self.assertEqual(self.states(), [])

    def test_native_call_in_a_graph(self):
        """It stays native, and keeps nobody from compressing the others."""
        self.go("good:80", "captures:1", ranks=3)
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_compressed_call_in_a_graph(self):
        """The class then stays as it is, whatever comes."""
        self.go("good:50", "random:40", "captures:49", ranks=3)
        self.assertEqual(self.states(), [("compressed", 1)])

    def test_native_and_back(self):
        self.go("good:40", "random:60", "good:150", ranks=3)
        self.assertEqual([state for state, _ in self.states()], ["compressed", "native", "compressed"])


class Loss(Case):
    def dies(self, ranks, rank, call, *words):
        results = self.go("good:60", f"dies@{rank}:{call}", *words, ranks=ranks, good=False, seconds=60)
        for number, result in enumerate(results):
            if number == rank:
                self.assertEqual(result.status, -9)
            else:
                self.assertEqual(result.status, 0, result)
                self.assertRegex(result.out, r"(lost|refused) \d\ndone")

    def test_rank_that_dies_at_each_step(self):
        for call in range(12):
            for rank in (0, 2):
                with self.subTest(call=call, rank=rank):
                    self.dies(3, rank, call)

    def test_rank_that_dies_while_the_hosts_are_ahead(self):
        for call in (5, 8, 11, 14):
            for rank in (0, 1):
                with self.subTest(call=call, rank=rank):
                    self.dies(3, rank, call, "ahead:6")


    def test_abort_at_the_fence(self):
        """A rank that waits for the decision comes out of its call when its communicator is aborted."""
        for attempt in range(40):  # the stopped rank may have answered before, or have said nothing yet
            results = self.again("stopped-at-fence", str(attempt % 20 * 20), ranks=3, good=False, seconds=30,
                                 ZIPCCL_START=None)
            self.assertEqual(results[2].status, -9)
            for result in results[:2]:
                self.assertEqual(result.status, 0, result)
            # ncclInvalidUsage; or the other's end has released it before.
            if any("waited after call 7: 5\n" in result.out for result in results[:2]):
                return
        self.fail("no rank ever waited at a fence")


if __name__ == "__main__":
    preload_case.main()
