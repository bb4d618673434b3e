#!/usr/bin/env python3
"""Tests of bench/gpu/mps.py with a program that stands for the daemon's control and writes down what it was told."""
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "bench" / "gpu")]
import mps  # noqa: E402

STAND_IN = """#!/bin/sh
echo "$* of $CUDA_VISIBLE_DEVICES" >> "$TOLD"
[ "$*" = -d ] || cat >> "$TOLD"
"""


class MpsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.told = self.folder / "told"

    def with_path(self, path):
        patch = mock.patch.dict(os.environ, {"PATH": path, "TOLD": str(self.told)})
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)

    def with_stand_in(self):
        control = self.folder / mps.CONTROL
        control.write_text(STAND_IN, encoding="utf-8")
        control.chmod(0o755)
        self.with_path(f"{self.folder}:{os.environ['PATH']}")

    def test_clients_see_the_gpus_of_the_daemon_from_0(self):
        self.with_stand_in()
        with mps.shared_gpus(["2", "5"]) as environment:
            self.assertEqual(self.told.read_text(), "-d of 2,5\n")
            self.assertEqual(environment["CUDA_VISIBLE_DEVICES"], "0,1")
            self.assertLessEqual(8 * int(environment["CUDA_DEVICE_MAX_CONNECTIONS"]), 4 * 32 - 1)
            self.assertTrue(pathlib.Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).is_dir())
        self.assertRegex(self.told.read_text(), r"quit -t \d+\n$")
        self.assertFalse(pathlib.Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).exists())

    def test_the_daemon_ends_with_a_failure(self):
        self.with_stand_in()
        with self.assertRaises(ValueError), mps.shared_gpus(["0"]):
            raise ValueError
        self.assertRegex(self.told.read_text(), r"quit -t \d+\n$")

    def test_without_a_daemon_processes_take_turns(self):
        self.with_path(str(self.folder))
        with mps.shared_gpus(["3"]) as environment:
            self.assertEqual(environment, {"CUDA_VISIBLE_DEVICES": "3"})
        mps.end_daemon(environment)
        mps.end_daemon({})
        self.assertFalse(self.told.exists())


if __name__ == "__main__":
    unittest.main()
