"""Runs programs of several processes so that none outlives its time limit. A rank that hangs, or that a dead launcher left behind,
would otherwise block its GPU for all later runs."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from gpu_bench import Failure

TAG = "BRAID_BENCH_RUN"  # in the environment of all processes of a run, also of those that a launcher puts into sessions of their own
POLL_S = 0.05
# Becomes the program, and is ended by the kernel if the process that started it dies first, of whatever.
DIES_WITH_PARENT = [sys.executable, "-S", "-c", "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
                    "os.execvp(sys.argv[1], sys.argv[1:])"]
GRACE_S = 5  # between one rank's failure and the end of the others, which may have more to say


def tagged(tag):
    """Ids of the processes that a run started, at whatever depth, but for those that have ended."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            pass  # ended meanwhile, or is somebody else's
    return found


def describe_threads(tag):
    """Where the processes of a run stand: a line each, and their stacks where a debugger is at hand, else what their threads wait in."""
    lines = []
    for process in tagged(tag):
        lines.append(f"process {process}: {describe_process(process)}")
        debugger = shutil.which("gdb")
        if debugger:
            try:
                done = subprocess.run([debugger, "-p", str(process), "-batch", "-ex", "thread apply all bt 12"], capture_output=True,
                                      text=True, timeout=20, check=False, stdin=subprocess.DEVNULL, errors="replace")
                lines += [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
            except subprocess.TimeoutExpired:
                lines.append("  the debugger did not answer")
        else:
            lines += threads_of(process)
    return "\n".join(lines)


def describe_process(process):
    try:
        folder = pathlib.Path(f"/proc/{process}")
        variables = (folder / "environ").read_bytes().split(b"\0")
        rank = [value[5:].decode() for value in variables if value.startswith(b"RANK=")]
        words = (folder / "cmdline").read_bytes().split(b"\0")
        return f"{'rank ' + rank[0] if rank else 'no rank'}, {words[0].decode(errors='replace')}"
    except OSError:
        return "has ended"


def threads_of(process):
    """What the kernel says of each thread: its name, state and where it sleeps."""
    lines = []
    for folder in sorted(pathlib.Path(f"/proc/{process}/task").glob("*")):
        try:
            name = (folder / "comm").read_text().strip()
            state = (folder / "stat").read_text().rsplit(") ", 1)[1][0]
            lines.append(f"  thread {folder.name} {name}: {state} {(folder / 'wchan').read_text().strip()}")
        except OSError:
            pass  # has ended meanwhile, or is not ours to see
    return lines


def end_all(tag):
    """Ends them; a process may start another while this looks, so until there are none."""
    for _ in range(20):
        processes = tagged(tag)
        if not processes:
            return
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(POLL_S)


def wait(processes, limit_s):
    """Statuses of the processes when all have ended, or one has failed, or the time is up; None of those that still run."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        statuses = [process.poll() for process in processes]
        if None not in statuses:
            return statuses
        if any(statuses):  # neither None nor 0
            deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(POLL_S)
    return [process.poll() for process in processes]


def tail(text, lines=30):
    return "\n".join(text[-8000:].splitlines()[-lines:])


def explain(statuses, outputs, command, limit_s):
    """What went wrong, with the end of what the processes that failed, or did not end, printed."""
    failed = [rank for rank, status in enumerate(statuses) if status]
    text = f"{command[0]} took more than {limit_s:.0f} s" if not failed else " and ".join(
        f"rank {rank} ended with status {statuses[rank]}" for rank in failed)
    for rank in (failed or [rank for rank, status in enumerate(statuses) if status is None])[:2]:
        text += f"\nrank {rank} of {' '.join(command)}:\n{tail(outputs[rank])}"
    return text


def end_as_one():
    """Of this process: what asks it to end, as `timeout` does, ends what it runs too."""
    def leave(number, _):
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def end_with_this():
    """Of a process that runs programs in threads: what asks it to end, as `timeout` does, at once ends all that was started since."""
    tag = uuid.uuid4().hex
    os.environ[TAG] = tag
    signals = (signal.SIGTERM, signal.SIGHUP)
    # Handlers run in the main thread, which may be about to wait for another thread. So a separate thread receives signals, and the
    # handler only keeps the main thread from ending first.
    arrived, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    for number in signals:
        signal.signal(number, lambda *_: threading.Event().wait())

    def leave():
        number = 0
        while number not in signals:
            number = os.read(arrived, 1)[0]
        end_all(tag)
        os._exit(128 + number)  # no thread waits for anything any more
    threading.Thread(target=leave, daemon=True).start()


def run_together(command, limit_s, environments, log=None):
    """One process of `command` for each environment (which is added to this one's), all at once. Their outputs, errors included; all of
    them whole in the file `log`, whatever comes. Throws Failure if one fails or all have not ended after `limit_s`; in any case none
    of them runs afterwards."""
    command = [str(word) for word in command]
    tag = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"rank{rank}" for rank in range(len(environments))]
        processes = []
        try:
            for path, environment in zip(files, environments):
                with path.open("wb") as output:
                    processes.append(subprocess.Popen([*DIES_WITH_PARENT, *command], stdin=subprocess.DEVNULL, stdout=output,
                                                      stderr=subprocess.STDOUT, env={**os.environ, **environment, TAG: tag}))
            statuses = wait(processes, limit_s)
        finally:
            end_all(tag)
            for process in processes:
                process.wait()
        outputs = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        heads = (f"== rank {rank} of {' '.join(command)}: status {status}\n" for rank, status in enumerate(statuses))
        log.write_text("".join(head + output for head, output in zip(heads, outputs)), encoding="utf-8")
    if any(status != 0 for status in statuses):
        raise Failure(explain(statuses, outputs, command, limit_s))
    return outputs
