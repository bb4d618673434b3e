"""Programs that start the processes of a run on one host or two: real launchers, where they are installed, and a Slurm of our own.

Each launch is a function of the hosts, the names of those that take part, a run and more options of `braid train`. It starts all
processes of the run and returns the programs that it has started.
"""
import os
import secrets
import shutil
import subprocess
import sys
import time

import two_hosts

NUM_RANKS = 4
PORT = 29500  # where ranks meet that were started by hand, or torchrun's agents
POLL_S = 0.05
MPIRUN = ["mpirun", "--bind-to", "none"]
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Failure(Exception):
    """What a case found to be wrong."""


def tail(text, lines=20):
    return "\n".join(text[-4000:].splitlines()[-lines:])


def secret_file(hosts):
    """The secret of all runs of these hosts."""
    path = hosts.folder / "secret"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return path


class Program:
    """One that runs on a host, its output and errors in a file."""

    def __init__(self, hosts, name, host, command, environment):
        self.host, self.output = host, hosts.folder / f"{name}.{host}.txt"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen([*hosts.enter(host), *map(str, command)], cwd=hosts.folder, stdin=subprocess.DEVNULL,
                                            stdout=file, stderr=subprocess.STDOUT,
                                            env=two_hosts.environment(TMPDIR=str(hosts.folder), BRAID_SECRET_FILE=str(secret_file(hosts)),
                                                                      **environment))

    def said(self):
        return self.output.read_text(encoding="utf-8", errors="replace")


def wait_for(programs, limit_s):
    """Their statuses; Failure if they have not ended in time."""
    deadline = time.monotonic() + limit_s
    while any(program.process.poll() is None for program in programs):
        if time.monotonic() > deadline:
            raise Failure(f"not all have ended after {limit_s} s:\n" + "\n".join(tail(program.said()) for program in programs))
        time.sleep(POLL_S)
    return [program.process.returncode for program in programs]


def wait_until(true, what, limit_s=30):
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise Failure(f"not after {limit_s} s: {what}")
        time.sleep(POLL_S)


def by_hand(hosts, names, run, options):
    local = NUM_RANKS // len(names)
    place = {"WORLD_SIZE": str(NUM_RANKS), "MASTER_ADDR": names[0], "MASTER_PORT": str(PORT)}
    return [Program(hosts, f"{run.name}.{rank}", names[rank // local], [*run.words, *options],
                    {**place, "RANK": str(rank), "LOCAL_RANK": str(rank % local)}) for rank in range(NUM_RANKS)]


def mpirun(hosts, names, run, options):
    """Of Open MPI: one process on the first host, which reaches the second through a remote shell."""
    slots = ",".join(f"{name}:{NUM_RANKS // len(names)}" for name in names)
    words = [*MPIRUN, "-np", NUM_RANKS, "-host", slots, "--mca", "plm_rsh_agent", hosts.remote_shell(), *address_for_mpirun(names)]
    return [Program(hosts, run.name, names[0], [*words, *run.words, *options], OPEN_MPI)]


def mpirun_in_slurm(hosts, names, run, options):
    """In an allocation of Slurm's: srun starts the daemons of mpirun, and none on its own host."""
    words = ["salloc", f"--nodes={len(names)}", f"--ntasks-per-node={NUM_RANKS // len(names)}", *MPIRUN, *address_for_mpirun(names)]
    return [Program(hosts, run.name, names[0], [*words, *run.words, *options], {**start_slurm(hosts, names), **OPEN_MPI})]


def address_for_mpirun(names):
    return ["-x", f"MASTER_ADDR={names[0]}", "-x", "BRAID_SECRET_FILE"] if len(names) > 1 else []


def mpich(hosts, names, run, options):
    """Stands for the other MPIs."""
    words = ["mpiexec.hydra", "-n", NUM_RANKS, "-ppn", NUM_RANKS // len(names), "-hosts", ",".join(names), "-launcher", "rsh",
             "-launcher-exec", hosts.remote_shell(), "-genv", "MASTER_ADDR", names[0]]
    return [Program(hosts, run.name, names[0], [*words, *run.words, *options], {})]


def torchrun(hosts, names, run, options):
    """An agent on each host. Torch 1.13 knows options with underscores alone, and under Python 3.11 takes no 0, which is the default, for
    what it should redirect; a local rank that is not there does as well."""
    place = [f"--nnodes={len(names)}", f"--nproc_per_node={NUM_RANKS // len(names)}", "--redirects=9:1", "--tee=9:1"]
    meet = ["--rdzv_backend=c10d", f"--rdzv_endpoint={names[0]}:{PORT}", "--rdzv_id=check"] if len(names) > 1 else ["--standalone"]
    return [Program(hosts, run.name, name, [*find_torchrun(), *place, *meet, "--no_python", *run.words, *options], {}) for name in names]


def srun(hosts, names, run, options, more=()):
    """Of a Slurm that is started on the first call."""
    slurm = start_slurm(hosts, names)
    words = ["srun", f"--nodes={len(names)}", f"--ntasks-per-node={NUM_RANKS // len(names)}", *more, *run.words, *options]
    return [Program(hosts, run.name, names[0], words, slurm)]


def srun_pmi2(hosts, names, run, options):
    """As where MpiDefault is pmi2: tasks have a PMI's variables, too."""
    return srun(hosts, names, run, options, ["--mpi=pmi2"])


def find_torchrun():
    """The words that are torchrun, empty if there is none: a program of that name, or what Debian's python3-torch has."""
    path = two_hosts.search_path()
    if shutil.which("torchrun", path=path):
        return ["torchrun"]
    for python in (sys.executable, "/usr/bin/python3"):
        found = subprocess.run([python, "-c", "import importlib.util as find, sys; sys.exit(find.find_spec('torch') is None)"])
        if found.returncode == 0:
            return [python, "-m", "torch.distributed.run"]
    return []


SLURM_CONF = """ClusterName=check
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir={folder}/slurmd.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def slurm_conf(hosts):
    return hosts.folder / "slurm.conf"


def write_slurm_conf(hosts, names):
    """Nodes have as many processors as there are ranks, whatever this machine has."""
    addresses = dict(zip(two_hosts.NAMES, two_hosts.ADDRESSES))
    nodes = "\n".join(f"NodeName={name} NodeAddr={addresses[name]} CPUs={NUM_RANKS} State=UNKNOWN" for name in names)
    slurm_conf(hosts).write_text(SLURM_CONF.format(first=names[0], address=addresses[names[0]], folder=hosts.folder, nodes=nodes))


def start_slurm(hosts, names):
    """The environment of its commands. munged, slurmctld and a slurmd per host run until the hosts end."""
    environment = {"SLURM_CONF": str(slurm_conf(hosts))}
    if slurm_conf(hosts).exists():
        return environment
    write_slurm_conf(hosts, names)
    start_munged(hosts, names[0])
    (hosts.folder / "slurmctld").mkdir()
    Program(hosts, "slurmctld", names[0], ["slurmctld", "-D"], environment)
    for name in names:
        Program(hosts, "slurmd", name, ["slurmd", "-D", "-N", name], environment)
    wait_until(lambda: num_idle_nodes(hosts, environment) == len(names), "all nodes of Slurm are idle")
    return environment


def start_munged(hosts, name):
    """One for all hosts, which share its socket as they share all files."""
    key, socket = hosts.folder / "munge.key", hosts.folder / "munge.socket"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [f"--{kind}-file={hosts.folder}/munge.{kind}" for kind in ("key", "log", "pid", "seed")]
    Program(hosts, "munged", name, ["munged", "--force", "--foreground", f"--socket={socket}", *files], {})
    wait_until(socket.exists, "munged listens")


def num_idle_nodes(hosts, environment):
    command = [*hosts.enter(two_hosts.NAMES[0]), "sinfo", "--noheader", "--Node", "--format=%t"]
    found = subprocess.run(command, capture_output=True, text=True, env=two_hosts.environment(**environment))
    return found.stdout.split().count("idle")


def missing_program(*names):
    missing = [name for name in names if not shutil.which(name, path=two_hosts.search_path())]
    return f"no program {', '.join(missing)}" if missing else ""


def why_no_slurm(*more):
    return missing_program("srun", "slurmctld", "slurmd", "munged", *more) or ("" if two_hosts.is_root() else "Slurm's daemons need root")


WHY_NOT = {
    by_hand: lambda: "",
    mpirun: lambda: missing_program("mpirun"),
    mpirun_in_slurm: lambda: why_no_slurm("mpirun"),
    mpich: lambda: missing_program("mpiexec.hydra"),
    torchrun: lambda: "" if find_torchrun() else "no torchrun, and no Python here has torch",
    srun: why_no_slurm,
    srun_pmi2: why_no_slurm,
}
