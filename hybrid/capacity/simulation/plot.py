"""A picture of a case: requests and every pool over time, and how many met their targets at each rate."""

from pathlib import Path

from ..picture import new_figure, save
from .study import Case


def draw(path: Path, case: Case, title: str) -> None:
    """Writes a picture of the simulation that stands for the case. Raises ValueError where it cannot."""
    figure = new_figure(layout="constrained")
    from matplotlib.ticker import PercentFormatter

    shown, goodput = case.shown, case.goodput
    assert shown is not None and goodput is not None
    timeline = shown.timeline
    searched = len(goodput.curve) > 1
    panels = 1 + len(timeline.pools) + searched
    figure.set_size_inches(8, 1.7 * panels)
    axes = figure.subplots(panels, squeeze=False)[:, 0]
    figure.suptitle(f"{title}, {shown.rate:.3g} requests/s", fontsize="medium")
    axes[0].plot(timeline.times, timeline.running, label="running")
    axes[0].plot(timeline.times, timeline.waiting, label="waiting")
    axes[0].set_ylabel("requests")
    axes[0].legend(loc="upper left", fontsize="small")
    for index, pool in enumerate(timeline.pools):
        panel = axes[1 + index]
        in_use, cached = timeline.in_use[:, index], timeline.cached[:, index]
        panel.stackplot(timeline.times, in_use, cached, labels=("in use", "cached"), alpha=0.8)
        panel.set_ylim(0, 1)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.set_ylabel(pool)
    axes[1].legend(loc="upper left", fontsize="small")
    for panel in axes[: 1 + len(timeline.pools)]:
        panel.sharex(axes[0])
    axes[len(timeline.pools)].set_xlabel("seconds")
    if searched:
        panel = axes[-1]
        rates = [summary.rate for summary in goodput.curve]
        panel.plot(rates, [summary.attainment or 0.0 for summary in goodput.curve], marker="o")
        panel.set_xscale("log")
        panel.set_xlabel("requests per second")
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.set_ylabel("met targets")
        panel.grid(alpha=0.3)
    save(figure, path)
