import io

from rich.console import Console

from sat_tf.reproduction.miniature.progress import OverallBar, Work

TITLES = ("float", "4 bits", "2 bits")


def _bar(console, work, seconds):
    return OverallBar(TITLES, work, console, clock=lambda: seconds[0])


def test_lines_say_what_came_out_and_how_long_the_rest_takes():
    seconds, output = [5.0], io.StringIO()
    work = Work(dict.fromkeys(TITLES, 100_000.0))
    with _bar(Console(file=output, width=200), work, seconds) as bar:
        for title in TITLES:
            bar.start()
            bar.show("step 1")
            seconds[0] += 600.0
            work.finish([title])
            bar.finish("top-1 50.0 %")
    # A third took ten minutes, so the rest takes twenty.
    assert output.getvalue().splitlines() == [
        "1/3  float: top-1 50.0 %  20 min left",
        "2/3  4 bits: top-1 50.0 %  10 min left",
        "3/3  2 bits: top-1 50.0 %",
    ]


def test_the_bar_says_what_is_being_done_and_the_time_left():
    seconds, output = [0.0], io.StringIO()
    work = Work(dict.fromkeys(TITLES, 100_000.0))
    with _bar(Console(file=output, width=200, force_terminal=True), work, seconds) as bar:
        bar.start()
        work.advance("float", 100_000.0)
        seconds[0] = 60.0
        bar.show("quantized 120/400")
        bar._bar.refresh()
    assert "1/3 float  quantized 120/400" in output.getvalue()
    assert "2 min left" in output.getvalue()


def test_what_had_finished_before_says_nothing_of_the_pace():
    seconds, output = [0.0], io.StringIO()
    work = Work(dict.fromkeys(TITLES[1:], 100_000.0))
    with _bar(Console(file=output, width=200), work, seconds) as bar:
        for title in TITLES:
            bar.start()
            seconds[0] += 600.0
            work.finish([title])
            bar.finish("")
    lines = output.getvalue().splitlines()
    assert lines[1].endswith("10 min left")
