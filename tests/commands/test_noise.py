import io
import os
import signal
import subprocess
import sys

import pytest

from sat_tf.commands.noise import is_noise, pass_on

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
CREATED = "INFO: Created TensorFlow Lite XNNPACK delegate for CPU."
CUDA = "E0000 00:00:1795561456.719417   16081 cuda_platform.cc:52] failed call to cuInit: INTERNAL"


NOISE = f"""
{CREATED}
{CUDA}
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795561442.844203   16081 port.cc:153] oneDNN custom operations are on.
2024-05-01 10:00:00.123456: I tensorflow/core/util/port.cc:113] oneDNN custom operations
2024-05-01 10:00:00.123456: E external/cuda_dnn.cc:9261] Unable to register cuDNN factory
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
Corrupt JPEG data: 128 extraneous bytes before marker 0xd9
Premature end of JPEG file
Not a JPEG file: starts with 0x89 0x50
Invalid SOS parameters for sequential JPEG
libpng warning: iCCP: known incorrect sRGB profile"""
ERRORS = """
error: model.keras: not found
ERROR: Node number 3 (CONV_2D) failed to prepare.
E0000 00:00:1795561456.719417   16081 bfc_allocator.cc:52] ran out of memory
F0000 00:00:1795561456.719417   16081 tensor.cc:9] Check failed: cuInit
terminate called after throwing an instance of 'std::bad_alloc'
a note with INFO: inside
Traceback (most recent call last):"""


def test_what_says_nothing_is_noise_and_what_may_be_an_error_is_passed_on():
    noise, errors = NOISE.encode().split(b"\n"), ERRORS.encode().split(b"\n")
    assert [line for line in [*noise, *errors] if not is_noise(line)] == [b"", *errors]


def test_lines_keep_their_order_and_the_last_needs_no_end():
    found = io.BytesIO()
    pass_on(io.BytesIO(f"one\n{CREATED}\ntwo\n{CUDA}\nthree".encode()), found)
    assert found.getvalue() == b"one\ntwo\nthree"


def _run(code, **environment):
    kept = {name: value for name, value in os.environ.items() if name != LEVEL}
    return subprocess.run(
        [sys.executable, "-c", f"import os, sys; CREATED = b'{CREATED}\\n'; {code}"],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


HIDE = "from sat_tf.commands.noise import hide_noise; hide_noise(); os.write(2, CREATED); "
QUIET = "from sat_tf.commands.models import quiet_tensorflow; quiet_tensorflow()"


@pytest.mark.parametrize(
    ("code", "told", "status"),
    [
        ("os.write(2, b'ERROR: bad\\n'); sys.exit(3)", "ERROR: bad\n", 3),
        ("print('warned', file=sys.stderr)", "warned\n", 0),
        ("os.write(2, b'Check failed\\n'); os.abort()", "Check failed\n", -signal.SIGABRT),
        ("import subprocess; subprocess.run('echo broken >&2', shell=True)", "broken\n", 0),
    ],
    ids=["native code", "Python", "before a crash", "other processes"],
)
def test_noise_is_kept_from_standard_error_and_all_else_is_heard(code, told, status):
    done = _run(HIDE + code)
    assert (done.stderr, done.returncode) == (told, status)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_the_last_words_of_a_stopped_command_are_passed_on(number):
    stop = f"os.setpgrp(); signal.signal(signal.{number}, lambda *_: None); {HIDE}"
    last = f"os.killpg(0, signal.{number}); time.sleep(0.2); os.write(2, b'saved\\n')"
    assert _run(f"import signal, time; {stop}{last}").stderr == "saved\n"


@pytest.mark.thorough
def test_who_sets_tensorflows_level_hears_all():
    for level, told in ({}, ""), ({LEVEL: "2"}, ""), ({LEVEL: "0"}, f"{CREATED}\n"):
        assert _run(f"{QUIET}; os.write(2, CREATED)", **level).stderr == told


REDUCING = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(3)))
try:
    tf.io.decode_jpeg(tf.io.encode_jpeg(tf.zeros((64, 64, 3), tf.uint8)).numpy()[:-200])
except tf.errors.InvalidArgumentError:
    pass
tf.get_logger().error("an error of TensorFlow")
os.write(2, b"E0000 00:00:1795561456.719417   16081 bfc_allocator.cc:52] ran out of memory\\n")
"""


@pytest.mark.thorough
def test_what_strategies_reduce_and_decoders_mend_is_not_told_but_errors_are():
    done = _run(f"{QUIET}\n{REDUCING}")
    assert done.returncode == 0, done.stderr
    told = sorted(line.split("]")[-1].split("tensorflow:")[-1] for line in done.stderr.splitlines())
    assert told == [" ran out of memory", "an error of TensorFlow"]


def test_importing_sat_tf_silences_nothing():
    levels = f"logging.getLogger('tensorflow').level, os.environ.get('{LEVEL}')"
    assert _run(f"import sat_tf, logging; print({levels})").stdout.split() == ["0", "None"]


@pytest.mark.thorough
def test_a_command_that_loads_tensorflow_writes_nothing_beside_its_own():
    words = ["explain", "keras.applications:MobileNetV2", "--image_size=32"]
    done = _run(f"from sat_tf.commands.main import main; sys.exit(main({words}))")
    assert (done.returncode, done.stderr) == (0, "")
    assert "block_1_depthwise" in done.stdout
