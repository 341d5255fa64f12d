"""Splits of benchmarks: VehicleID's drawn galleries, In-Shop's partition, distractors, averages over levels."""

import math

import numpy as np
import pytest
import torch
from hgld.evaluation.protocols.vehicle_id import draw_gallery

from hgld.errors import ConfigError, InputError, TableError
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.protocols import (
    average_over_levels,
    evaluate_ukbench,
    evaluate_vehicle_id,
    evaluate_with_distractors,
    read_in_shop,
    read_vehicle_list,
)


def embeddings_of(labels, seed=0, noise=0.8):
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(max(labels) + 1, 6))
    return (centres[labels] + noise * generator.normal(size=(len(labels), 6))).astype(np.float32)


VEHICLES = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])


def slow_match_rate(embeddings, labels, gallery, k):
    """Share of the queries whose vehicle's one gallery image is among the first k."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    hits = []
    for query in set(range(len(labels))) - set(gallery):
        if labels[query] not in labels[gallery]:
            continue
        order = sorted(gallery, key=lambda g: -float(unit[query] @ unit[g]))
        hits.append(labels[query] in [labels[g] for g in order[:k]])
    return sum(hits) / len(hits)


def test_a_drawn_gallery_has_one_item_a_class():
    drawn = [draw_gallery(VEHICLES, np.random.default_rng(seed)) for seed in range(50)]
    assert all(VEHICLES[indices].tolist() == [0, 1, 2, 3] for indices in drawn)
    assert {int(i) for indices in drawn for i in indices} == set(range(10))


def test_vehicle_id_equals_its_twin():
    embeddings = embeddings_of(VEHICLES)
    report = evaluate_vehicle_id(embeddings, VEHICLES, metrics=("R@1", "R@2"), repeats=4, seed=3)
    generator = np.random.default_rng(3)
    rates = [[slow_match_rate(embeddings, VEHICLES, g, k) for k in (1, 2)] for g in draws(generator, 4)]
    assert report.values == pytest.approx(
        dict(zip(["R@1/vehicle", "R@2/vehicle"], np.mean(rates, axis=0), strict=True))
    )
    assert report.settings["draws"]["R@1/vehicle"] == pytest.approx([r for r, _ in rates])
    assert len(report.per_query) == 4 * 6
    assert report.settings["repeats"] == 4


def draws(generator, repeats):
    return [draw_gallery(VEHICLES, generator) for _ in range(repeats)]


def test_vehicle_id_is_drawn_ten_times_by_seed():
    embeddings, labels = embeddings_of(VEHICLES), torch.from_numpy(VEHICLES)
    one, two = (evaluate_vehicle_id(embeddings, labels) for _ in range(2))
    other = evaluate_vehicle_id(embeddings, labels, seed=1)
    assert one.values == two.values
    assert len(one.settings["draws"]["R@1/vehicle"]) == 10
    assert one.settings["draws"] != other.settings["draws"]


def test_vehicle_id_names_what_does_not_fit():
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate_vehicle_id(embeddings_of(VEHICLES), VEHICLES, repeats=0)
    with pytest.raises(InputError, match="one vehicle each"):
        evaluate_vehicle_id(embeddings_of(VEHICLES), VEHICLES[:5])
    with pytest.raises(InputError, match="no vehicle has two images"):
        evaluate_vehicle_id(np.eye(3, dtype=np.float32), np.arange(3))


def test_a_vehicle_list_is_read(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("0195476 12\n0195477 12\n\n0195478 7\n")
    table = read_vehicle_list(file)
    assert table.rows() == [("0195476", 12), ("0195477", 12), ("0195478", 7)]


def test_broken_vehicle_lists_are_refused(tmp_path):
    file = tmp_path / "test_list_800.txt"
    file.write_text("0195476 12\n")
    with pytest.raises(TableError, match="1 vehicles; expected 800"):
        read_vehicle_list(file)
    file.write_text("0195476 12\n0195477 twelve\n")
    with pytest.raises(TableError, match="row 2 is '0195477 twelve'"):
        read_vehicle_list(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="not a text file"):
        read_vehicle_list(file)
    with pytest.raises(TableError, match="cannot be read"):
        read_vehicle_list(tmp_path / "none.txt")


IN_SHOP = """3
image_name item_id evaluation_status
img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 train
img/WOMEN/Dresses/id_00000001/01_1_front.jpg id_00000001 query
img/WOMEN/Dresses/id_00000001/01_2_side.jpg id_00000001 gallery
"""


def test_in_shop_is_read(tmp_path):
    file = tmp_path / "list_eval_partition.txt"
    file.write_text(IN_SHOP)
    table = read_in_shop(file)
    assert table["split"].to_list() == ["train", "query", "gallery"]
    assert table["label"].to_list() == [1, 0, 0]
    assert table["item"][1] == "id_00000001"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (IN_SHOP.replace("3", "4", 1), "3 images; its first line says '4'"),
        (IN_SHOP.replace("item_id ", ""), "then the header"),
        (IN_SHOP.replace(" query", " test"), "row 4 is"),
        ("", "then the header"),
    ],
)
def test_broken_in_shop_partitions_are_refused(tmp_path, text, said):
    file = tmp_path / "list_eval_partition.txt"
    file.write_text(text)
    with pytest.raises(TableError, match=said):
        read_in_shop(file)


LABELS = np.array([[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1]])


def test_distractors_are_ranked_and_match_nothing():
    embeddings = embeddings_of(LABELS[:, 0])
    metrics, levels = ("AP", "R@1", "H-AP"), ("fine", "coarse")
    plain = evaluate(embeddings, LABELS, metrics=metrics, levels=levels)
    far = evaluate_with_distractors(embeddings, LABELS, -embeddings[:1] * 0 + 1e-3, metrics=metrics, levels=levels)
    own = embeddings * 1.5  # each query's own copy comes first
    near = evaluate_with_distractors(embeddings, LABELS, own, metrics=metrics, levels=levels)
    assert near.values["R@1/fine"] == 0
    assert near.values["AP/fine"] < plain.values["AP/fine"]
    assert far.settings["distractors"] == 1
    assert near.settings["protocol"] == "leave-one-out with distractors"
    assert near.undefined == plain.undefined


def test_distractors_equal_a_gallery_written_out():
    embeddings, others = embeddings_of(LABELS[:, 0]), embeddings_of(LABELS[:, 0], seed=9)
    found = evaluate_with_distractors(embeddings, LABELS, others, metrics=("AP",), levels=("fine", "coarse"))
    gallery, labels = np.concatenate([embeddings, others]), np.concatenate([LABELS, np.full_like(LABELS, -1)])
    written = evaluate(
        embeddings, LABELS, gallery, labels, self_index=np.arange(6), metrics=("AP",), levels=("fine", "coarse")
    )
    assert found.values == written.values
    against = evaluate_with_distractors(
        embeddings, LABELS, others, None, gallery, labels, metrics=("AP",), levels=("fine", "coarse")
    )
    assert against.settings["protocol"] == "query against gallery with distractors"


def test_the_query_counts_with_distractors_as_without():
    embeddings = embeddings_of(LABELS[:, 0]) + 9  # all to one side: the distractor on the other comes last
    options = {"levels": ("fine", "coarse"), "metrics": ("H-AP",)}
    for count_query in (True, False):
        plain = evaluate(embeddings, LABELS, count_query=count_query, **options)
        one = evaluate_with_distractors(
            embeddings, LABELS, -embeddings.mean(0)[None], count_query=count_query, **options
        )
        assert one.settings["count_query"] is count_query
        assert one.values["H-AP"] <= plain.values["H-AP"] + 1e-12


def test_distractors_may_be_relevant_as_in_dyml():
    embeddings, others = embeddings_of(LABELS[:, 0]), embeddings_of(LABELS[:, 0], seed=9)
    tensors = [torch.from_numpy(part) for part in (embeddings, LABELS[:, 0], others, LABELS[:, 0])]
    report = evaluate_with_distractors(*tensors, levels=("fine",), metrics=("R@1",))
    assert report.undefined == {"R@1/fine": 0}  # alone, items 2 and 5 would have no positive


def test_distractors_that_do_not_fit_are_refused():
    embeddings = embeddings_of(LABELS[:, 0])
    with pytest.raises(InputError, match="as many dimensions"):
        evaluate_with_distractors(embeddings, LABELS, embeddings[:, :3])
    with pytest.raises(InputError, match="as many levels"):
        evaluate_with_distractors(embeddings, LABELS, embeddings, LABELS[:, 0])
    with pytest.raises(InputError, match="come together"):
        evaluate_with_distractors(embeddings, LABELS, embeddings, None, embeddings)


def test_average_of_one_report():
    embeddings = embeddings_of(LABELS[:, 0])
    report = evaluate(embeddings, LABELS, levels=("fine", "in/outdoor"), metrics=("AP", "R@1", "H-AP"))
    average = average_over_levels(report)
    for kind in ("AP", "R@1"):
        assert average.values[f"{kind}/average"] == pytest.approx(
            (report.values[f"{kind}/fine"] + report.values[f"{kind}/in/outdoor"]) / 2
        )
    assert "H-AP/average" not in average.values
    assert average.values["H-AP"] == report.values["H-AP"]
    fine, coarse = (average.per_query[f"AP/{level}"].to_list() for level in ("fine", "in/outdoor"))
    expected = [c if math.isnan(f) else (f + c) / 2 for f, c in zip(fine, coarse, strict=True)]
    assert average.per_query["AP/average"].to_list() == pytest.approx(expected)


def test_average_of_a_report_a_level(tmp_path):
    reports = []
    for column, level in enumerate(("fine", "middle", "coarse")):
        labels = np.arange(8) // (2 + column)
        query, rest = embeddings_of(labels, seed=column), embeddings_of(labels, seed=column + 10)
        reports.append(evaluate_with_distractors(query, labels, rest, labels, levels=(level,), metrics=("AP", "R@1")))
    average = average_over_levels(*reports)
    assert average.values["AP/average"] == pytest.approx(
        np.mean([r.values[f"AP/{level}"] for r, level in zip(reports, ("fine", "middle", "coarse"), strict=True)])
    )
    assert len(average.per_query) == 24
    assert average.settings["levels"] == ["fine", "middle", "coarse"]
    average.save_json(tmp_path / "dyml.json")
    assert type(average).load_json(tmp_path / "dyml.json").values == average.values


def test_averages_that_mean_nothing_are_refused():
    embeddings = embeddings_of(LABELS[:, 0])
    one = evaluate(embeddings, LABELS[:, 0], levels=("fine",), metrics=("AP",))
    other = evaluate(embeddings, LABELS[:, 1], levels=("coarse",), metrics=("R@1",))
    graded = evaluate(embeddings, LABELS, levels=("fine", "coarse"), metrics=("H-AP",))
    graphic = evaluate_ukbench(np.eye(4, dtype=np.float32), [f"{n}.jpg" for n in range(4)])
    for reports in ([], [one], [one, one], [one, other], [graded], [graphic]):
        with pytest.raises(ConfigError, match="expected"):
            average_over_levels(*reports)
