"""Names of metrics: parsing, printing and common spellings."""

from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError
from hgld.evaluation.metric import resolve
from hgld.metrics import Metric
from tests.rows import each_row, refused

KINDS = ["AP", "mAP@R", "R@{}", "TR@{}", "P@{}", "mAP@{}"]
GRADED = ["HD@{}", "H-AP", "H-R@{}", "H-P@{}", "NDCG", "NDCG@{}", "ASI", "wAP"]


@given(
    kind=st.sampled_from([*KINDS, *GRADED]),
    number=st.integers(1, 999_999_999),
    level=st.none() | st.text(min_size=1, max_size=8),
)
def test_metric_name_survives_parsing_and_printing(kind, number, level):
    name = kind.format(number) + (f"/{level}" if level is not None and kind in KINDS else "")
    metric = Metric.parse(name)
    assert str(metric) == name
    assert Metric.parse(str(metric)) == metric
    assert metric.binary == (kind in KINDS)
    assert metric.depth == (number if "@{}" in kind else None)


test_unknown_metric_name_error_lists_known_names = refused(
    Metric.parse,
    [
        "",
        "R",
        "R@",
        "R@k",
        "R@0",
        "R@-1",
        "R@01",
        "R@1.5",
        "R@1 ",
        "best@5",
        "AP/",
        "AP#1",
        "H-AP/fine",
        "NDCG@",
        "recall@k",
        "R#1",
        "R@1\n",
        "mAP@1000000000",
    ],
    ConfigError,
    r"is unknown; expected one of AP, mAP@R",
)


@each_row(
    ("habit", "name"),
    [
        ("recall@10", "R@10"),
        ("rank-5", "R@5"),
        ("mAP@r", "mAP@R"),
        ("map@100", "mAP@100"),
        ("h_ap", "H-AP"),
        ("ndcg@5", "NDCG@5"),
    ],
)
def test_common_spellings_are_understood(habit, name):
    assert str(Metric.parse(habit)) == name


def test_binary_metric_without_level_means_every_level():
    names = [str(m) for m in resolve(["AP", "H-AP", "AP/fine", "R@1/coarse"], ["fine", "coarse"])]
    assert names == ["AP/fine", "AP/coarse", "H-AP", "R@1/coarse"]
    assert [str(m) for m in resolve("ASI", ["fine"])] == ["ASI"]


test_unknown_level_and_empty_metrics_are_refused = refused(
    lambda names: resolve(names, ["fine", "coarse"]),
    [(["AP/no"], "level 'no' is unknown; expected fine, coarse"), ([], "no metrics")],
    ConfigError,
)
