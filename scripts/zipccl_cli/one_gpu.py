"""Starts the ranks of a job on this machine, also several on one GPU.

NCCL refuses two ranks on one GPU only if they claim the same host. With an NCCL_HOSTID of its own every rank passes
for a host, and NCCL takes its socket transport; CUDA's MPS daemon lets the ranks' kernels run side by side instead of
in time slices of milliseconds. torchrun cannot set a variable per rank, so the ranks are started here."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

GRACE_SECONDS = 10  # between SIGTERM and SIGKILL
END_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # after which nothing may be left behind


def gpu_count():
    """GPUs that a job started here would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    if not shutil.which("nvidia-smi"):
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


@contextlib.contextmanager
def mps():
    """Runs an MPS daemon of our own and yields the environment that leads to it; nothing where there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="zipccl-mps-")
    variables = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    for path in variables.values():
        os.mkdir(path)
    environment = {**os.environ, **variables}
    environment.pop("LD_PRELOAD", None)
    started = subprocess.run([control, "-d"], env=environment, capture_output=True, text=True, check=False)
    try:
        if started.returncode != 0:
            print(f"zipccl: no MPS daemon, ranks take turns: {started.stderr.strip()}", file=sys.stderr)
            yield {}
        else:
            yield variables
    finally:
        if started.returncode == 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit\n", env=environment, capture_output=True, text=True,
                               timeout=30, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def rank_environment(rank, ranks, port, shared):
    """What torchrun would set, and with `shared` what lets ranks share a GPU."""
    environment = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }
    if shared:
        environment["NCCL_HOSTID"] = f"zipccl-rank-{rank}"
        environment["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", "lo")
    return environment


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def signals_held():
    """SIGHUP, SIGINT and SIGTERM come when what is inside is done; meanwhile the list that it gets says which came.
    Their exception could come while a process starts, which would be left behind, known to nobody, or inside of poll(),
    which would keep the process's lock, so that a later wait() never returns."""
    came = []
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield came
        return
    # Not those that are ignored, as by nohup: the processes would no longer ignore them.
    handlers = {number: signal.getsignal(number) for number in END_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def signal_group(process, number):
    """To all processes that `process` has started in its session. Whether there were any."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Ranks:
    """Processes of one job. When one fails or a signal comes, all end."""

    def __init__(self, command, ranks, environment=None, shared=False, on_line=None):
        self.on_line = on_line
        self.lock = threading.Lock()
        self.processes, self.pumps = [], []
        port = free_port()
        try:
            for rank in range(ranks):
                variables = {**os.environ, **(environment or {}), **rank_environment(rank, ranks, port, shared)}
                process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                           text=True, errors="replace", start_new_session=True)
                self.processes.append(process)
                pump = threading.Thread(target=self._pump, args=(rank, process.stdout), daemon=True)
                pump.start()
                self.pumps.append(pump)
        except BaseException:
            self.kill(signal.SIGKILL)
            raise

    def _pump(self, rank, stream):
        with stream:
            for line in stream:
                with self.lock:
                    self.on_line(rank, line.rstrip("\n"))

    def kill(self, number):
        for process in self.processes:
            signal_group(process, number)

    def wait(self, timeout, came):
        """Returns the first nonzero exit status, 124 after `timeout` seconds, or 0; at once when a signal `came`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if came:
                return 128 + came[0]
            states = [process.poll() for process in self.processes]
            failed = [state for state in states if state]
            if failed:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if all(state == 0 for state in states):
                return 0
            if deadline is not None and time.monotonic() > deadline:
                return 124
            time.sleep(0.05)

    def end(self):
        """Ends what still runs, children included."""
        if any(process.poll() is None for process in self.processes):
            self.kill(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
                time.sleep(0.05)
        self.kill(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for pump in self.pumps:
            pump.join(timeout=5)


def _print_line(rank, line):
    try:
        print(f"[{rank}] {line}", flush=True)
    except BrokenPipeError:  # as behind `| head`: the job goes on, unheard
        sys.stdout = open(os.devnull, "w", encoding="utf-8")


def run(command, ranks, environment=None, share=None, timeout=None, on_line=None):
    """Runs `ranks` processes of `command`; output lines go to on_line(rank, line), by default to stdout with the rank
    in front. share: ranks share GPUs (None: if there are fewer GPUs than ranks, but at least one)."""
    gpus = gpu_count()
    shared = 0 < gpus < ranks if share is None else share
    with contextlib.ExitStack() as stack:
        variables = dict(environment or {})
        # A place of their own for processes that meet through files (test/jobs/job.hpp).
        variables["JOB_DIRECTORY"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="zipccl-job-"))
        if shared:
            variables.update(stack.enter_context(mps()))
        with signals_held() as came:
            job = Ranks(command, ranks, variables, shared, on_line or _print_line)
            try:
                return job.wait(timeout, came)
            finally:
                job.end()
