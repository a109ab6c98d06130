"""Outcomes, and runs that take no time."""

from benchmarks.paper.reproduction import Outcome
from sat_tf import output_folder
from sat_tf.report.results import Results
from sat_tf.training import run_folder
from sat_tf.training.config import config_text
from sat_tf.training.run_folder import RunState


def outcome(**fields):
    """An outcome that differs from all others in the given fields alone."""
    common = {"row": "table1/mobilenet_v2/4bits", "data": "glyphs", "seed": 0, "changes": ""}
    common |= {"top1": 71.25, "top5": 90.5, "tflite_top1": 71.0, "tflite_images": 1024}
    common |= {"codes_differing": 0, "images": 8000, "seconds": 60.5, "run": "run_1234abcd"}
    common |= {"commit": "0123abcd", "date": "2026-01-31T12:00:00+00:00"}
    return Outcome(**{**common, **fields})


class FakeRunner:
    """Stands for `sat_tf.training.loop.runner.train`: writes the files of a finished run.

    Its `configs` are of the runs that it was asked for; `lost` is the share of the float model's
    top-1 that the file has no more.
    """

    def __init__(self, codes_differing=0, lost=0.0):
        self.configs = []
        self._codes_differing, self._lost = codes_differing, lost

    def train(self, config, folder, console, *, resume=None, wait=False):
        """Gives every run a top-1 of its own: 50 % and as many points as runs before it."""
        del console, resume, wait
        top1 = 0.5 + 0.01 * len(self.configs)
        self.configs.append(config)
        folder.start()
        folder.write_text(output_folder.CONFIG, config_text(config))
        folder.write_json(
            run_folder.ENVIRONMENT,
            {"seed": config.seed, "commit": None, "started": "2026-01-31T12:00:00+00:00"},
        )
        state = RunState(folder)
        quantized = config.stages.quantized is not None
        stage = "quantized" if quantized else "float"
        state.finish(stage, {"loss": 1.0, "top1": top1, "top5": 1.0})
        folder.file(output_folder.FLOAT_MODEL).touch()
        of_file = {"tflite_top1": top1 - self._lost, "codes_differing": self._codes_differing}
        numbers = {"held_out_images": 8000, "parameters": 1, "seconds": 1.0}
        results = Results(float_top1=top1, **numbers, **(of_file if quantized else {}))
        folder.write_json(output_folder.RESULTS, results.to_dict())
        folder.file(output_folder.REPORT).touch()
        return results
