"""The command `braid` of an installed wheel."""
import importlib.util
import os
import pathlib
import sys

from . import processor


def main():
    """Runs the program in the package braid in place of this process."""
    try:
        processor.check()
    except ImportError as error:
        sys.exit(f"braid: {error}")
    program = pathlib.Path(importlib.util.find_spec("braid").origin).parent / "bin" / "braid"
    os.execv(program, ["braid", *sys.argv[1:]])
