"""Imported first by tests that need PyTorch: where this Python has none, they run by that of `scripts/setup.sh --reference`, or exit 77
(ctest: skipped)."""
import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "build" / "reference" / "bin" / "python"
if not importlib.util.find_spec("torch"):
    if pathlib.Path(sys.executable) == REFERENCE or not REFERENCE.exists():
        print("skipped: there is no PyTorch; scripts/setup.sh --reference installs one")
        sys.exit(77)
    os.execv(REFERENCE, [REFERENCE, "-B", *sys.argv])
