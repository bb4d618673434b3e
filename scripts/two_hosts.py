"""Two hosts on one machine, each with its own network and name. They disappear when the process that made them ends.

`run_isolated` runs a program as the first process of new namespaces (unshare): when it ends for any reason, the kernel ends all
processes that it started and removes its mounts. In these namespaces, `Hosts` makes node1 and node2, each with a
network namespace, a host name and an /etc/hosts, connected by a pair of virtual Ethernet devices. Both hosts see the same files, as
hosts of a cluster share some, and the same process numbers. It needs root, or a kernel that lets users create namespaces.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NAMES = ("node1", "node2")
ADDRESSES = ("10.91.0.1", "10.91.0.2")
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip")
PATIENCE_S = 20  # for a host to be there
POLL_S = 0.05


def isolation():
    """The command prefix that starts a program as the first process of new namespaces. The program ends if this process ends."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *as_root, "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child",
            "--mount-proc"]


def why_not():
    """Why there can be no hosts here; empty if there can."""
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=search_path())]
    if missing:
        return f"no program {missing[0]}"
    device = ["ip", "link", "add", "name", "try0", "type", "veth", "peer", "name", "try1"]
    found = subprocess.run([*isolation(), *device], capture_output=True, text=True, env=environment())
    return "" if found.returncode == 0 else f"no namespaces of networks: {found.stderr.strip() or 'status ' + str(found.returncode)}"


def is_root():
    """Whether root in here is root of the machine, too: it may become any user, and only then do some daemons run."""
    return pathlib.Path("/proc/self/uid_map").read_text().split()[1] == "0"


def search_path():
    """Programs of the system are for root, who finds them in /usr/sbin."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def environment(**more):
    """What programs need, and nothing that a launcher around this program has set."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "PATH": search_path(), **more}


def run_isolated(arguments):
    """The status of this program with those arguments and then a folder, where it finds itself isolated. The folder is in memory."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        mount = 'mount -t tmpfs none "$0" && ip link set lo up && exec "$@" "$0"'
        program = subprocess.Popen([*isolation(), "sh", "-c", mount, folder, sys.executable, sys.argv[0], *arguments])
        try:
            return program.wait()
        finally:
            program.kill()
            program.wait()


def end_all_others():
    """Ends every process but this one, the first of its namespace."""
    if os.getpid() != 1:
        raise RuntimeError("only the first process of its namespace may end all others")
    try:
        while True:
            os.kill(-1, signal.SIGKILL)
            reap()
            time.sleep(POLL_S)
    except ProcessLookupError:
        pass


def reap():
    """Forgets processes that have ended, also those whose parents have."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Hosts:
    """node1 and node2. All that runs on them ends with `close`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = {}
        for index, name in enumerate(NAMES):
            self.processes[name] = self._start(index, name)
        for name in NAMES:
            self._await(name)
        self._connect()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        end_all_others()

    def _start(self, index, name):
        """A shell in new namespaces, which then sleeps. As in Debian, the host's own name resolves to a loopback address."""
        names = self.folder / f"{name}.hosts"
        other = 1 - index
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{ADDRESSES[other]} {NAMES[other]}\n")
        script = 'hostname "$1" && mount --bind "$2" /etc/hosts && touch "$3" && exec sleep infinity'
        return subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", script, "sh", name, names, self._sign(name)],
                                env=environment(), stdin=subprocess.DEVNULL)

    def _sign(self, name):
        return self.folder / f"{name}.is_there"

    def _await(self, name):
        deadline = time.monotonic() + PATIENCE_S
        while not self._sign(name).exists():
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"host {name} has not started")
            time.sleep(POLL_S)

    def _connect(self):
        first, second = (str(self.processes[name].pid) for name in NAMES)
        call("ip", "link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for name, address in zip(NAMES, ADDRESSES):
            self.call(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.call(name, "ip", "link", "set", "lo", "up")
            self.set_link(name, "up")

    def set_link(self, name, state):
        """Plugs the cable into that host, or out of it."""
        self.call(name, "ip", "link", "set", "eth0", state)

    def enter(self, name):
        """The words before a command that is to run on that host."""
        return ["nsenter", "--target", str(self.processes[name].pid), "--net", "--uts", "--mount", f"--wd={self.folder}"]

    def call(self, name, *command):
        call(*self.enter(name), *command)

    def remote_shell(self):
        """A program that is called as rsh and ssh are: host, then words for a shell."""
        path = self.folder / "remote_shell"
        cases = "".join(f"{name}) pid={process.pid} ;;\n" for name, process in self.processes.items())
        path.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}*) echo "no host $host" >&2; exit 1 ;;\nesac\n'
                        'exec nsenter --target "$pid" --net --uts --mount sh -c "$*"\n')
        path.chmod(0o755)
        return path


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
