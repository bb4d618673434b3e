#!/usr/bin/env python3
"""Runs the tests of the Python module of a build.

    python/tests/run.py PYTHON BUILD_FOLDER/python

Exits 77, with the reason, where that Python has no pytest.
"""
import os
import pathlib
import subprocess
import sys

python, package = sys.argv[1:]
if subprocess.run([python, "-c", "import pytest"], capture_output=True, check=False).returncode != 0:
    print(f"skipped: {python} has no pytest (pip install pytest)")
    sys.exit(77)
tests = pathlib.Path(__file__).resolve().parent
command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
sys.exit(subprocess.run(command, env={**os.environ, "PYTHONPATH": package}, check=False).returncode)
