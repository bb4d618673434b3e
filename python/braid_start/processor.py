"""What must be asked of the processor before braid's code is loaded."""
import contextlib
import os
import subprocess
import sys

from ._build import NEEDED_FLAGS

# Loads the extension alone and prints what it would have liked to find in the environment.
_PROBE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_braid", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for name, value in module._better_environment().items():
    print(name, value)
"""


def _flags():
    """Names of the processor's instruction sets, as Linux gives them; empty if it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return next((set(line.split(":")[1].split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()


def check():
    """Raises ImportError on a processor without the instructions that braid was compiled for."""
    flags = _flags()
    missing = [flag for flag in NEEDED_FLAGS if flags and flag not in flags]
    if missing:
        raise ImportError(f"this build of braid needs a processor with {', '.join(missing)} (x86-64-v3: Intel since 2013, AMD since "
                          "2015); build it from its sources on this machine instead")


@contextlib.contextmanager
def faster_products(extension):
    """Inside, the environment makes OpenBLAS choose the right kernels when it is loaded. On processors newer than itself it chooses
    those of old ones, six times slower. It says so only once it is loaded, so another process asks it first. `extension`: path of
    braid._braid."""
    if "OPENBLAS_CORETYPE" in os.environ or not sys.executable:
        yield
        return
    probe = subprocess.run([sys.executable, "-I", "-S", "-c", _PROBE, extension], capture_output=True, text=True, check=False)
    wanted = dict(line.split() for line in probe.stdout.splitlines()) if probe.returncode == 0 else {}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]
