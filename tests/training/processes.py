"""Starts, watches and kills the processes of `one_process`."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]


def start(folder, *overrides, workers=1, method="sat"):
    """Starts one process, or several that train together, by a method of `tests.methods`."""
    folder.mkdir(exist_ok=True)
    words = ("tests.training.one_process", str(folder), method, *overrides)
    return _started([words] * workers, stderr=subprocess.PIPE)


def _started(modules, **options):
    """Starts modules with their words, as workers of one cluster if they are several."""
    ports = free_ports(len(modules)) if len(modules) > 1 else []
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    running = []
    for index, words in enumerate(modules):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        variables = {**os.environ, **({"TF_CONFIG": json.dumps(task)} if ports else {})}
        options |= {"cwd": ROOT, "env": variables, "stdout": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen([sys.executable, "-m", *words], **options))
    return running


def finish(processes, *, status=0):
    """Waits for all; gives the losses by step that each has printed."""
    outputs = [process.communicate(timeout=600) for process in processes]
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == status, out[-2000:] + err[-4000:]
    return [losses(out.splitlines()) for out, _ in outputs]


def until_step(process, step):
    """Reads what a process prints until it has done so many steps."""
    for line in process.stdout:
        if line.startswith("{") and json.loads(line)["step"] >= step:
            return
    raise AssertionError(process.stderr.read()[-4000:])


def losses(lines):
    """The losses by step."""
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {row["step"]: row["loss"] for row in found}


def weights(folder, worker=0):
    """The weights that a process has left."""
    with np.load(folder / f"worker{worker}.npz") as arrays:
        return [arrays[name] for name in sorted(arrays)]


def free_ports(count):
    """Numbers of ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def sat_tf_together(*words, own=((), ())):
    """Runs `sat-tf` in several processes at once, each with some words of its own.

    Gives what each has printed, and its status.
    """
    running = _started([("sat_tf", *words, *more) for more in own], stderr=subprocess.STDOUT)
    outputs = [process.communicate(timeout=900)[0] for process in running]
    return [(out, process.returncode) for out, process in zip(outputs, running, strict=True)]
