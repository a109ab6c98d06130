import numpy as np
import pytest

from benchmarks.paper import gradients, kappa, variances
from benchmarks.paper.figure import as_table, depths
from benchmarks.paper.figures import FIGURES
from sat_tf.presentation import charts
from sat_tf.training import models
from tests.benchmarks.paper.test_kappa import classifier_alone, training_table


@pytest.fixture(scope="module")
def tables():
    """The numbers of each figure, of few samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            models, "build", lambda name, **_: classifier_alone(kappa.PRINTED[name].features)
        )
        return {
            "figure2a": variances.clamp_variance(0, neurons=(16, 1000), samples=3),
            "figure_s1": gradients.sigmoid(),
            "table_s1": kappa.kappa_table(0, samples=2),
            "figure_s2": training_table(),
            "figure_s3": variances.quantized_deviation(0, channels=(8, 16), samples=2),
            "equation13": gradients.level_gradient(),
        }


@pytest.mark.thorough
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_two_files_the_same_each_time_whose_letters_can_be_read(name, tables, tmp_path):
    figure = FIGURES[name]
    written = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        figure.write(folder / name, tables[name])
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]
    assert sorted(written[0]) == [f"{name}.csv", f"{name}.png"]
    assert as_table(figure.title, figure.compare(tables[name])).row_count > 0
    with charts.styled():
        picture = figure.draw(tables[name])
    # At half the size, 5.5 points: the least that is read on a screen.
    for axes in picture.axes:
        texts = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        texts += [*axes.get_xticklabels(), *axes.get_yticklabels()]
        texts += axes.get_legend().get_texts() if axes.get_legend() else []
        assert min(text.get_fontsize() for text in texts) >= 11


def test_depths_go_from_dark_to_light_and_never_to_white():
    colours, depth = depths(20)
    shares = (0.2126, 0.7152, 0.0722)  # of red, green and blue in how bright a colour is
    bright = [np.dot(shares, colours(depth(number))[:3]) for number in range(1, 21)]
    assert bright == sorted(bright)
    assert bright[-1] < 0.7
