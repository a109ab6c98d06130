"""The table of figures."""

from sat_tf.messages import did_you_mean
from sat_tf.reproduction.figures import (
    clamp_variance,
    kappa_table,
    kappa_training,
    level_gradient,
    quantized_deviation,
    sigmoid,
)
from sat_tf.reproduction.figures.figure import Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="figure2a",
            place="Figure 2a",
            title="variance of clamped over original weights, by the number of neurons",
            caption="Square layers of n × n weights from N(0, 1/n), 100 of each size, clamped by "
            "tanh and its maximum.",
            seconds=35.0,
            columns=clamp_variance.COLUMNS,
            measure=clamp_variance.measure,
            draw=clamp_variance.draw,
            compare=clamp_variance.compare,
        ),
        Figure(
            name="figure_s1",
            place="Figure S1",
            title="the sigmoid and its derivative",
            caption="Where logits are far from 0, the gradient of the cross entropy is lost.",
            seconds=1.0,
            columns=sigmoid.COLUMNS,
            measure=sigmoid.measure,
            draw=sigmoid.draw,
            compare=sigmoid.compare,
        ),
        Figure(
            name="table_s1",
            place="Table S1",
            title="κ₀ of four classifiers, vanilla and clamped",
            caption="Models at 224 pixels, weights of the classifier from N(0, 1/1000), 100 draws; "
            "bars are the standard deviation of one draw. “By one ratio”: vanilla times the ratio "
            "of variances of 100 000 weights, the same for all models, as in the printed values.",
            seconds=20.0,
            columns=kappa_table.COLUMNS,
            measure=kappa_table.measure,
            draw=kappa_table.draw,
            compare=kappa_table.compare,
        ),
        Figure(
            name="figure_s2",
            place="Figure S2",
            title="κ₀ and κ₁ while a ResNet-18 is trained",
            caption="ResNet-18 with a quarter of the channels, 1000 printed characters of 24 × 24 "
            "pixels, 320 steps of 64 images, SGD with Nesterov momentum, peak rate 0.1 and cosine; "
            "gradients of 128 training images. The paper trains on ImageNet to the end.",
            seconds=55.0,
            columns=kappa_training.COLUMNS,
            measure=kappa_training.measure,
            draw=kappa_training.draw,
            compare=kappa_training.compare,
        ),
        Figure(
            name="figure_s3",
            place="Figure S3",
            title="standard deviation of quantized over clamped weights, by bits",
            caption="Square layers of n × n weights from N(0, 1/n) for n channels, 10 of each "
            "size, on every grid of sat-tf.",
            seconds=6.0,
            columns=quantized_deviation.COLUMNS,
            measure=quantized_deviation.measure,
            draw=quantized_deviation.draw,
            compare=quantized_deviation.compare,
        ),
        Figure(
            name="equation13",
            place="Equation 13",
            title="gradient of the clipping level, original and calibrated",
            caption="The contribution of one activation x to the gradient of the clipping level α.",
            seconds=2.0,
            columns=level_gradient.COLUMNS,
            measure=level_gradient.measure,
            draw=level_gradient.draw,
            compare=level_gradient.compare,
        ),
    )
}


def find(names: list[str]) -> tuple[list[Figure], list[str]]:
    """The figures of these names, by default all; and the problems of unknown names."""
    known = [name for name in dict.fromkeys(names or FIGURES) if name in FIGURES]
    problems = [
        f"received {name!r}, expected the name of a figure. {did_you_mean(name, FIGURES)}"
        for name in dict.fromkeys(names)
        if name not in FIGURES
    ]
    return [FIGURES[name] for name in known], problems
