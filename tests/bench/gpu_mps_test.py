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

# Its daemon has gone where $TOLD.no_daemon names its folder.
STAND_IN = """#!/bin/sh
if [ "$*" = -d ]; then
  echo "-d of $CUDA_VISIBLE_DEVICES" >> "$TOLD"
else
  cat >> "$TOLD"
  ! grep -qsx "$CUDA_MPS_PIPE_DIRECTORY" "$TOLD.no_daemon"
fi
"""
# Finds no GPU where $TOLD.no_server names that folder.
CLIENT = ["/bin/sh", "-c", '! grep -qsx "$CUDA_MPS_PIPE_DIRECTORY" "$TOLD.no_server"']


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
        client = mock.patch.object(mps, "CLIENT", CLIENT)
        client.start()
        self.addCleanup(client.stop)

    def lose(self, what, service):
        """What is lost of the service's daemon."""
        pathlib.Path(f"{self.told}.{what}").write_text(service.environment["CUDA_MPS_PIPE_DIRECTORY"] + "\n", encoding="utf-8")

    def test_clients_see_the_gpus_of_the_daemon_from_0(self):
        self.with_stand_in()
        with mps.shared_gpus(["2", "5"]) as service:
            environment = service.environment
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

    def test_a_service_that_has_gone_is_started_anew(self):
        self.with_stand_in()
        for what in ("no_daemon", "no_server"):
            with self.subTest(what), mps.shared_gpus(["2", "5"]) as service:
                self.told.unlink()
                before = service.environment
                service.renew_if_gone()
                self.assertEqual((service.environment, service.number), (before, 1))
                self.lose(what, service)
                service.renew_if_gone()
                self.assertEqual(service.number, 2)
                self.assertRegex(self.told.read_text(), r"quit -t \d+\n-d of 2,5\n$")
                after = service.environment
                self.assertEqual(after["CUDA_VISIBLE_DEVICES"], "0,1")
                self.assertNotEqual(after["CUDA_MPS_PIPE_DIRECTORY"], before["CUDA_MPS_PIPE_DIRECTORY"])
                self.assertTrue(pathlib.Path(after["CUDA_MPS_PIPE_DIRECTORY"]).is_dir())
                service.renew_if_gone()
                self.assertEqual(service.number, 2)

    def test_without_a_daemon_processes_take_turns(self):
        self.with_path(str(self.folder))
        for gpus, environment in ((["3"], {"CUDA_VISIBLE_DEVICES": "3"}), ([], {})):
            with mps.shared_gpus(gpus) as service:
                self.assertEqual(service.environment, environment)
                service.renew_if_gone()
                self.assertEqual(service.number, 0)
        self.assertFalse(self.told.exists())

    def test_without_gpus_there_is_no_daemon(self):
        self.with_stand_in()
        with mps.shared_gpus([]) as service:
            self.assertEqual(service.environment, {})
        self.assertFalse(self.told.exists())


if __name__ == "__main__":
    unittest.main()
