"""The learning curves of a run as a picture."""

import os

from sat_tf.training.history import EpochMetrics

_COLOURS = {"float": "tab:blue", "quantized": "tab:orange", "deploy_tail": "tab:green"}


def draw_curves(rows: list[EpochMetrics], title: str, path: str | os.PathLike[str]) -> None:
    """Draws top-1 and loss over the epochs of all stages.

    Args:
        rows: the metrics of the run, stage after stage; at least one.
        title: of the picture.
        path: of the PNG file.
    """
    # Here, because matplotlib takes its time to load; a figure without pyplot needs no screen and
    # leaves no state behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    top1, loss = figure.subplots(1, 2)
    before = 0
    for stage in dict.fromkeys(row.stage for row in rows):
        own = [row for row in rows if row.stage == stage]
        epochs = [before + row.epoch for row in own]
        colour = _COLOURS.get(stage)
        held_out = [100 * row.held_out_top1 for row in own]
        train = [100 * row.train_top1 for row in own]
        top1.plot(epochs, held_out, color=colour, marker=".", label=f"{stage}, held out")
        top1.plot(epochs, train, color=colour, linestyle=":", label=f"{stage}, training")
        loss.plot(epochs, [row.loss for row in own], color=colour, marker=".", label=stage)
        if before:
            for axes in (top1, loss):
                axes.axvline(before + 0.5, color="0.7", linewidth=0.8)
        before += len(own)
    top1.set(xlabel="epoch", ylabel="top-1 (%)")
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    for axes in (top1, loss):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.savefig(path, format="png")
