"""CUDA's Multi-Process Service for a while: processes that share a GPU then run on it at the same time instead of in turns of
milliseconds, in which ranks that wait for each other get nowhere."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

CONTROL = "nvidia-cuda-mps-control"
END_S = 20
# Clients share one pool of hardware queues, which 4 of them with 32 each exhaust.
QUEUES_PER_CLIENT = 12


@contextlib.contextmanager
def shared_gpus(gpus):
    """The environment of processes that share `gpus` (indices or UUIDs, as text) through a daemon of their own, which ends with the block.
    On a machine without such daemons it says only which GPUs: processes then take turns."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if not shutil.which(CONTROL):
        yield visible
        return
    with tempfile.TemporaryDirectory(prefix="braid_mps_") as folder:
        pipes, logs = pathlib.Path(folder) / "pipes", pathlib.Path(folder) / "logs"
        pipes.mkdir()
        logs.mkdir()
        places = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        subprocess.run([CONTROL, "-d"], env={**os.environ, **visible, **places}, check=True, timeout=END_S)
        try:
            # The daemon's GPUs are numbered from 0 for its clients.
            yield {**places, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(gpus)))),
                   "CUDA_DEVICE_MAX_CONNECTIONS": str(QUEUES_PER_CLIENT)}
        finally:
            end_daemon(places)


def end_daemon(places):
    """If `places`, an environment that shared_gpus() gave, has one. Also where clients were killed and never said that they left."""
    if "CUDA_MPS_PIPE_DIRECTORY" not in places:
        return
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run([CONTROL], input=f"quit -t {END_S // 2}\n", text=True, env={**os.environ, **places},
                       stdout=subprocess.DEVNULL, timeout=END_S, check=False)
