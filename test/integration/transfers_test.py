"""Sends, receives and all-to-alls that are compressed, in whole processes on the stand-in NCCL.

    transfers_test.py --build FOLDER [unittest arguments]
"""

import collections

import preload_case


class Case(preload_case.Case):
    def routes(self, collective, rank=0, communicator=0):
        total = collections.Counter()
        for bucket in self.reports()[rank]["communicators"][communicator]["buckets"]:
            if bucket["collective"] == collective:
                total.update(bucket["calls"])
        return dict(total)


class Calls(Case):
    def test_other_name(self):
        self.launch("transfers-other-name", ranks=3)
        self.assertEqual(self.routes("all_to_all"), {"compressed": 1})

    def test_simulated(self):
        self.launch("transfers-simulated", ranks=3)
        for collective in ("send", "receive"):
            self.assertEqual(self.routes(collective), {"compressed": 40})

    def test_simulated_while_the_ranks_agree(self):
        """Only calls that are made count, or the two ends of a pair would number them differently."""
        self.launch("transfers-simulated", ranks=3, ZIPCCL_START="fenced")
        self.assertGreater(self.routes("send")["compressed"], 0)

    def test_empty(self):
        self.launch("transfers-empty", ranks=3)
        self.assertEqual(self.routes("send"), {"compressed": 1, "small": 1})

    def test_orders(self):
        for start in ("now", "fenced"):
            self.again("transfers-orders", ranks=4, ZIPCCL_START=start)
            for communicator in (0, 1):
                self.assertGreater(self.routes("send", 1, communicator)["compressed"], 0)

    def test_joined_streams(self):
        """As NCCL joins them, whatever of a group is compressed."""
        for exchange in ("static", "exact"):
            self.again("groups-joined-streams", ranks=3, ZIPCCL_EXCHANGE=exchange)
        self.again("groups-joined-streams", ZIPCCL="off")

    def test_classes_that_compress_unlike(self):
        self.launch("groups-unlike-classes")
        self.assertEqual(self.routes("all_gather"), {"compressed": 40})
        self.assertGreater(self.routes("send")["native"], 0)

    def test_empty_collectives(self):
        self.launch("groups-empty-collectives", seconds=20)
        self.again("groups-empty-collectives", seconds=20, ZIPCCL="off")

    def test_children(self):
        self.launch("transfers-children", ranks=4)
        for rank in range(4):
            by_name = {c["name"].partition("/")[2]: index
                       for index, c in enumerate(self.reports()[rank]["communicators"])}
            self.assertEqual(self.routes("send", rank, by_name[""]), {"compressed": 1})
            self.assertEqual(self.routes("receive", rank, by_name[f"split{rank % 2}"]), {"compressed": 2})


class Errors(Case):
    def test_dropped_groups(self):
        """NCCL drops a group with a bad call as a whole, and later ones are compressed as before."""
        for start in ("now", "always"):
            self.again("transfers-dropped", ranks=3, ZIPCCL_START=start)
            self.assertGreaterEqual(self.routes("send")["compressed"], 60)

    def test_groups_dropped_while_the_ranks_agree(self):
        self.launch("transfers-dropped", ranks=3, ZIPCCL_START="fenced")

    def test_groups_dropped_on_one_rank(self):
        """The others do not know: the ranks number their calls differently from there on."""
        for start in ("now", "fenced", "always"):
            self.again("transfers-dropped-on-one", ranks=3, ZIPCCL_START=start)

    def test_dropped_groups_of_two_communicators(self):
        for scenario in ("transfers-dropped-of-two", "transfers-dropped-on-one-of-two"):
            for start in ("now", "fenced", "always"):
                self.again(scenario, ranks=3, ZIPCCL_START=start)

    def test_dropped_group_whose_all_gather_has_run(self):
        """The rank that is ahead of the others must not go on as if it were not."""
        for start in ("now", "always"):
            results = self.again("transfers-dropped-gather", ZIPCCL_START=start, seconds=30)
            self.assertEqual(results[0].out, "gave up 3\ndone\n", results[0])
            self.assertIn("which NCCL would have left out", results[0].err)
        self.again("transfers-dropped-gather", ZIPCCL="off")

    def test_groups_dropped_as_the_ranks_switch(self):
        for first in range(7, 15):
            results = self.again("transfers-dropped-late", str(first), ZIPCCL_START="fenced", seconds=30)
            for result in results:
                self.assertRegex(result.out, r"^(gave up [36]\n)?done\n")
            # Rank 0 gives up for that reason alone.
            self.assertEqual("gave up" in results[0].out, "about to change what is compressed" in results[0].err, results[0])

    def test_lone_calls_that_nccl_refuses_on_one_rank(self):
        """It has numbered them, and the others have not."""
        for first in (1, 7, 9, 11, 13, 15, 40):
            results = self.again("groups-refused", str(first), ZIPCCL_START="fenced", seconds=30)
            for result in results:
                self.assertRegex(result.out, r"^(gave up \d\n)?done\n")
            self.assertEqual("gave up" in results[0].out, "about to change what is compressed" in results[0].err, results[0])

    def test_call_that_nccl_refuses(self):
        """It drops the group, which is NCCL's word for it, and the communicators live."""
        for call in ("ncclSend", "ncclRecv"):
            results = self.again("transfers-results", STANDIN_FAULT=f"call={call},nth=4,action=error:2")
            for result in results:
                self.assertIn("0 0 0 2 0 0 0 0 0 0 \n", result.out)
                self.assertRegex(result.err, r"compressed sends and receives failed: NCCL returned an error.*"
                                             r"NCCL_DEBUG=WARN says more")
            self.assertEqual(self.routes("send"), {"compressed": 9})

    def test_abort_of_a_waiting_receive(self):
        for _ in range(4):  # the record may have left before its sender stops
            results = self.again("transfers-aborted", ZIPCCL_POOL=0)
            if "did not wait" not in results[1].out:
                break
        self.assertIn("\nwaited\n", "\n" + results[1].out)

    def test_killed_peer(self):
        for start in ("now", "fenced"):
            results = self.again("transfers-killed", ranks=3, good=False, seconds=60, ZIPCCL_START=start)
            self.assertEqual(results[2].status, -9)
            for result in results[:2]:
                self.assertEqual(result.status, 0, result)
                self.assertRegex(result.out, r"lost [1-6]\n")

    def test_communicator_ended_after_a_loss(self):
        """What was enqueued behind the lost call ends, and no fault of zipccl's is reported."""
        for end in ("call", "destroy", "finalize"):
            for result in self.again("transfers-lost", end, ZIPCCL_POOL=0, seconds=20):
                self.assertNotIn("report this", result.err)
            self.again("transfers-lost", end, ZIPCCL="off", seconds=20)

    def test_spoilt_captures(self):
        """NCCL refuses calls there, and goes on."""
        self.launch("groups-spoilt-captures", ZIPCCL_START="always")
        self.again("groups-spoilt-captures", ZIPCCL="off")

    def test_capture_without_staging(self):
        """Staging is then made beside the capture."""
        for mebibytes in (0, 1):
            self.again("transfers-captured", ZIPCCL_TRANSFER_MB=mebibytes)
            staging = self.reports()[0]["communicators"][0]["transfer_staging_bytes"]
            self.assertEqual(staging >> 20, mebibytes)
            self.assertGreater(staging, 0)

    def test_no_memory(self):
        results = self.launch("transfers-no-memory")
        for result in results:
            self.assertIn("large 1\nsmall 1\n", result.out)
            self.assertRegex(result.err, r"compressed sends and receives failed: out of memory.* leave the device more "
                                         r"memory or take p2p out of ZIPCCL_COLLECTIVES")


if __name__ == "__main__":
    preload_case.main()
