import io

from rich.console import Console

from sat_tf.miniature.bar import OverallBar
from sat_tf.miniature.groups import jobs
from sat_tf.miniature.work import trainings


def _bar(console, seconds):
    planned = jobs(full=False)
    return OverallBar(planned, trainings(planned), console, clock=lambda: seconds[0])


def test_lines_say_what_came_out_and_how_long_the_rest_takes():
    seconds, output = [0.0], io.StringIO()
    with _bar(Console(file=output, width=200), seconds) as bar:
        for number in range(1, 7):
            bar.start(number)
            bar.on_step("float" if number < 3 else "quantized", 100)
            seconds[0] += 60.0
            bar.finish(number, "top-1 50.0 %")
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("1/6  glyphs/float/clamp, seed 0: top-1 50.0 %")
    assert lines[0].endswith("min left")
    assert lines[-1] == "6/6  glyphs/2bits/pact_sat_cg, seed 0: top-1 50.0 %"
    # Two float models of 1000 steps and 200 units after them, four of 400 · 1.6 + 500: after four
    # jobs, half of the latter are left, at a minute for each 1200 or 1140.
    assert "4 min left" not in lines[3]
    assert "2 min left" in lines[3]


def test_the_bar_follows_the_steps_of_the_running_job():
    seconds, output = [0.0], io.StringIO()
    console = Console(file=output, width=200, force_terminal=True)
    with _bar(console, seconds) as bar:
        bar.start(3)
        bar.on_step("quantized", 120)
        bar._bar.refresh()
    assert "3/6 glyphs/2bits/pact, seed 0" in output.getvalue()
    assert "quantized 120/400" in output.getvalue()
