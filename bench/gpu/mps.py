"""CUDA's Multi-Process Service for a while: processes that share a GPU then run on it at the same time instead of in turns of
milliseconds, in which ranks that wait for each other get nowhere."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

from gpu_bench import Failure

CONTROL = "nvidia-cuda-mps-control"
END_S = 20
# Clients share one pool of hardware queues, which 4 of them with 32 each exhaust.
QUEUES_PER_CLIENT = 12
# A client that asks for a context on every GPU. Without a daemon it would get one, too, outside of the service.
CLIENT = [sys.executable, "-c", """import ctypes, sys
cuda, count, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0
sys.exit(bool(failed or any(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) for gpu in range(count.value))))
"""]


class Service:
    """The service for `gpus` (indices or UUIDs, as text), with its own daemon. If the machine has no such daemon, or no GPUs, there is no
    service, and processes take turns. Other threads may use it."""

    def __init__(self, gpus, folder):
        self.gpus, self.folder, self.lock = gpus, pathlib.Path(folder), threading.Lock()
        self.number, self.places = 0, {}  # of the daemons so far, and where the newest listens
        if gpus and shutil.which(CONTROL):
            self.begin()

    @property
    def environment(self):
        """Of processes that share the GPUs from now on."""
        if not self.places:
            return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        # The daemon's GPUs are numbered from 0 for its clients.
        return {**self.places, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(self.gpus)))),
                "CUDA_DEVICE_MAX_CONNECTIONS": str(QUEUES_PER_CLIENT)}

    def begin(self):
        pipes, logs = (self.folder / f"{name}{self.number}" for name in ("pipes", "logs"))
        pipes.mkdir()
        logs.mkdir()
        places = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        try:
            subprocess.run([CONTROL, "-d"], env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(self.gpus), **places}, check=True,
                           timeout=END_S)
        except subprocess.SubprocessError as error:
            raise Failure(f"GPUs {','.join(self.gpus)} cannot be shared: {error}") from None
        self.places, self.number = places, self.number + 1

    def is_gone(self):
        """Whether clients find no daemon, or none of its GPUs: one that is killed with work on a GPU can take its server along."""
        if not self.places:
            return False
        for command, words in (([CONTROL], "get_server_list\n"), (CLIENT, "")):
            try:
                subprocess.run(command, input=words, text=True, env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, timeout=END_S, check=True)
            except subprocess.SubprocessError:
                return True
        return False

    def renew_if_gone(self):
        """A new daemon where the newest has gone; `number` then is another."""
        with self.lock:
            if self.is_gone():
                self.end()
                self.begin()

    def end(self):
        """Also where clients were killed and never said that they left."""
        if self.places:
            with contextlib.suppress(subprocess.SubprocessError):
                subprocess.run([CONTROL], input=f"quit -t {END_S // 2}\n", text=True, env={**os.environ, **self.places},
                               stdout=subprocess.DEVNULL, timeout=END_S, check=False)


@contextlib.contextmanager
def shared_gpus(gpus):
    """A Service that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="braid_mps_") as folder:
        service = Service(gpus, folder)
        try:
            yield service
        finally:
            service.end()
