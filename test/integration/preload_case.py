"""What tests of libzipccl.so preloaded into whole processes share. The job (preload_job.cpp) checks all data itself; the
tests check how it went there.
"""

import argparse
import collections
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

import launch

BUILD = pathlib.Path()  # the build folder, once main() has run


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

    def comm_id(self):
        """An NCCL_COMM_ID of no other test at the same time: the stand-in's ranks meet by its text."""
        return f"127.0.0.1:{20000 + os.getpid() % 10000}"

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


def main():
    """What every test file runs, with --build FOLDER and unittest's own arguments."""
    global BUILD
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    BUILD = options.build.resolve()
    unittest.main(module="__main__", argv=[sys.argv[0], *rest], verbosity=2)
