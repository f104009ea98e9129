"""A real Slurm, from Debian's packages, on this machine: a controller and two nodes with two fake GPUs each."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from harness_helpers import wait_for

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
NODES = ("n1", "n2")

_CONF = """\
ClusterName=ttt
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
KillWait=2
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port={first}-{second} CPUs={cpus} RealMemory=500 Gres=gpu:2
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
# A fake GPU must be a character device, or Slurm sets no CUDA_VISIBLE_DEVICES.
_GRES = """\
NodeName=n1 Name=gpu File=/dev/null
NodeName=n1 Name=gpu File=/dev/zero
NodeName=n2 Name=gpu File=/dev/full
NodeName=n2 Name=gpu File=/dev/random
"""


class Cluster:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._pending: dict[str, float] = {}
        self.env = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        for name in ("state", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        port, first, second = _free_ports()
        values = {"folder": self.folder, "user": getpass.getuser(), "cpus": os.cpu_count()}
        text = _CONF.format(port=port, first=first, second=second, **values)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(_GRES)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def start(self) -> None:
        at = self.folder
        self._daemon(
            "munged",
            "--force",
            *(f"--{name}={at}/munge.{name.split('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")),
            f"--seed-file={at}/munge.seed",
        )
        self._daemon("slurmctld", "-c", "-f", f"{at}/slurm.conf")
        for node in NODES:
            self._daemon("slurmd", "-c", "-N", node, "-f", f"{at}/slurm.conf")
        assert wait_for(lambda: self.output("sinfo", "-h", "-o", "%T").split() == ["idle"]), self.logs()

    def stop(self) -> None:
        for name in ("munge.pid", "slurmctld.pid", *(f"{node}.pid" for node in NODES)):
            path = self.folder / name
            if path.exists():
                _kill(int(path.read_text()))
        for pid in self._of_this_cluster():
            _kill(pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def output(self, *command: str) -> str:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        return done.stdout

    def start_pending(self) -> None:
        """Start jobs that have been pending for two seconds; Slurm would delay a requeued job by two minutes."""
        pending = {
            line.split()[0] for line in self.output("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i %T").splitlines()
        }
        self._pending = {job: self._pending.get(job, time.monotonic()) for job in pending}
        for job, since in self._pending.items():
            if time.monotonic() > since + 2:
                self.output("scontrol", "update", f"JobId={job}", "StartTime=now")

    def finish(self, job: str) -> None:
        def is_over() -> bool:
            self.start_pending()
            time.sleep(0.2)
            done = subprocess.run(
                ["squeue", "-h", "-r", "-j", job, "-t", "all", "-o", "%T"], env=self.env, capture_output=True, text=True
            )
            states = set(done.stdout.split())
            return not done.returncode and bool(states) and states <= {"COMPLETED", "FAILED", "CANCELLED"}

        assert wait_for(is_over, 60), self.output("squeue") + self.logs()

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))

    def _daemon(self, *command: str) -> None:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def _of_this_cluster(self) -> list[int]:
        variable = f"SLURM_CONF={self.folder}/slurm.conf"
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if variable in _environ(pid) and pid != os.getpid()]


def missing() -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    absent = [name for name in NEEDED if not shutil.which(name, path=path)]
    return f"needs Slurm (apt-get install slurm-wlm munge): no {', '.join(absent)}" if absent else ""


def _free_ports() -> list[int]:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        try:
            for port in (first, first + 1, first + 2):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return [first, first + 1, first + 2]


def _environ(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
