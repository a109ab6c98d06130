"""Starts, watches and kills the processes of `one_process`."""

import contextlib
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
    return [dict(map(_step, filter(_step, out.splitlines()))) for out, _ in outputs]


def _step(line):
    """The number of a step and its loss, of the line that says them."""
    return tuple(json.loads(line).values()) if line.startswith("{") else ()


def until_step(process, step):
    """Reads what a process prints until it has done so many steps."""
    if not any(said[0] >= step for said in filter(None, map(_step, process.stdout))):
        raise AssertionError(process.stderr.read()[-4000:])


def weights(folder, worker=0):
    """The weights that a process has left."""
    with np.load(folder / f"worker{worker}.npz") as arrays:
        return [arrays[name] for name in sorted(arrays)]


def free_ports(count):
    """Numbers of ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def sat_tf_together(*words, own=((), ())):
    """Runs `sat-tf` in several processes at once, each with some words of its own.

    Gives what each has printed, and its status.
    """
    running = _started([("sat_tf", *words, *more) for more in own], stderr=subprocess.STDOUT)
    outputs = [process.communicate(timeout=900)[0] for process in running]
    return [(out, process.returncode) for out, process in zip(outputs, running, strict=True)]
