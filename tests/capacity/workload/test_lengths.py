"""Distributions as people write them."""

import math

import numpy as np
import pytest

from hybrid.capacity.workload.lengths import parse_distribution
from hybrid.capacity.workload.segments import MAX_LENGTH


def drawn(text: str, count: int = 100_000) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return parse_distribution("context", text).draw(count, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "mean", "p95"),
    [
        ("512", 512, 512),
        ("8k", 8192, 8192),
        ("uniform:100-900", 500, 860),
        ("uniform:7-7", 7, 7),
        ("normal:1k,100", 1024, 1188),
        ("lognormal:mean=512,p95=1500", 512, 1500),
        ("lognormal:p50=300,p95=2000", 300 * math.exp((math.log(2000 / 300) / 1.645) ** 2 / 2), 2000),
        ("lognormal:p95=600,mean=600", 600, 600),
        ("exponential:2k", 2048, 6135),
    ],
)
def test_mean_and_tail(text: str, mean: float, p95: float) -> None:
    lengths = drawn(text)
    assert lengths.dtype == np.int64 and lengths.min() >= 1
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert np.percentile(lengths, 95) == pytest.approx(p95, rel=0.02)


def test_uniform_reaches_both_ends() -> None:
    assert (drawn("uniform:3-5").min(), drawn("uniform:3-5").max()) == (3, 5)


def test_tails_are_cut() -> None:
    assert drawn("normal:5,100").min() == 1
    assert drawn("exponential:16777216").max() == MAX_LENGTH


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-5", "5.5", "nan", "1e3", "1000000000000", "uniform", "uniform:", "uniform:5", "uniform:0-5"),
        *("uniform:9-5", "uniform:-5-5", "normal:5", "normal:5,", "normal:5,6,7", "normal:nan,1", "exponential:0"),
        *("exponential:", "lognormal:512,2000", "lognormal:mean=512", "lognormal:mean=512,p95=511"),
        *("lognormal:mean=512,p50=400,p95=900", "lognormal:p50=512,p95=511", "lognormal:p95=5"),
        *(
            "lognormal:mean=512,p95=2000,p99=3",
            "lognormal:mean=100,p95=388",
            "gauss:5",
            "trace:x.csv",
            "uniform:1-99999k",
        ),
    ],
)
def test_other_text_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match=f"^output (must|needs) .*, got {text!r}$"):
        parse_distribution("output", text)
