"""Prefixes in one pass equal evaluations of the prefixes; codes equal their twins, and binary ties are exact."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hgld.evaluation.compressed import (
    binary_codes,
    code_values,
    hamming_distances,
    int8_codes,
    prefix_neighbors,
    prefix_values,
)
from hypothesis import given
from hypothesis import strategies as st

from hgld.cli import main
from hgld.errors import ConfigError, InputError
from hgld.evaluation import scores
from hgld.evaluation.evaluate import evaluate, evaluate_known_levels
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.report import RetrievalReport
from tests import reference

LEVELS = ("fine", "coarse")
METRICS = ("R@1", "AP", "mAP@R", "H-AP", "NDCG", "ASI")


def items(seed, count=24, dim=9):
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 6, count)
    return rng.normal(size=(count, dim)) + np.eye(6, dim)[fine], np.stack([fine, fine // 2], axis=1)


@pytest.mark.parametrize("with_gallery", [False, True])
@pytest.mark.parametrize("normalize", [True, False])
def test_prefixes_are_what_evaluations_of_the_prefixes_give(with_gallery, normalize):
    query, gallery = items(0), items(1, 31) if with_gallery else None
    options = EvaluationOptions(metrics=METRICS, normalize=normalize, chunk_size=10)
    found = prefix_values(query, gallery, (2, 4, 9), levels=LEVELS, options=options)
    for dim in (2, 4, 9):
        other = () if gallery is None else (gallery[0][:, :dim], gallery[1])
        expected = evaluate(query[0][:, :dim], query[1], *other, levels=LEVELS, metrics=METRICS, normalize=normalize)
        assert found[dim] == pytest.approx(expected.values, nan_ok=True), dim


def test_processes_rank_a_share_each_of_prefixes_and_codes(monkeypatch):
    """Embeddings are read part by part there as well."""
    (rows, labels), (others, known) = items(0), items(1, 90)
    query, gallery = (rows.astype(np.float16), labels), (others.astype(np.float16), known)
    alone = EvaluationOptions(metrics=METRICS)
    ranked = []

    def share(rank, count):
        parts = [range(7), range(7, count)]
        reports = [rank(part) for part in parts]
        ranked.append([len(report.per_query) for report in reports])
        joined = pl.concat([report.per_query for report in reports])
        return RetrievalReport.from_columns({name: joined[name].to_numpy() for name in reports[0].values}, {})

    shared = replace(alone, share=share)
    whole = [
        [prefix_values(query, gallery, (2, 9), levels=LEVELS, options=options) for options in (alone, shared)],
        [
            code_values(query, gallery, ("int8", "binary"), levels=LEVELS, options=options)
            for options in (alone, shared)
        ],
    ]
    assert ranked == [[7, 17]] * 3
    monkeypatch.setattr(scores, "_CACHED_NUMBERS", 0)
    part_by_part = [
        prefix_values(query, gallery, (2, 9), levels=LEVELS, options=alone),
        code_values(query, gallery, ("int8", "binary"), levels=LEVELS, options=alone),
    ]
    for (one, several), parts in zip(whole, part_by_part, strict=True):
        assert repr(one) == repr(several) == repr(parts)


def test_names_of_classes_are_as_good_as_numbers():
    (embeddings, labels), options = items(0), EvaluationOptions(metrics=METRICS)
    named = {level: [f"class {number}" for number in labels[:, i]] for i, level in enumerate(LEVELS)}
    given = {"levels": LEVELS, "options": options}
    by_numbers = prefix_values((embeddings, labels), None, (4,), **given)
    assert prefix_values((embeddings, named), None, (4,), **given) == by_numbers


def test_sizes_that_are_no_prefixes_are_refused():
    for dims in ((), (0, 2), (4, 2), (2, 10)):
        with pytest.raises(ConfigError, match="expected ascending sizes"):
            prefix_values(items(0), None, dims, levels=LEVELS, options=EvaluationOptions())
    zeros = np.concatenate([np.zeros((24, 1)), items(0)[0]], axis=1)
    with pytest.raises(InputError, match="query embeddings: the first 1 numbers of row 0 are zeros"):
        prefix_values((zeros, items(0)[1]), None, (1, 3), levels=LEVELS, options=EvaluationOptions())
    with pytest.raises(ConfigError, match="query expansion"):
        prefix_values(items(0), None, (2,), levels=LEVELS, options=EvaluationOptions(query_expansion=(2.0, 3)))
    with pytest.raises(ConfigError, match="no codes 'int4'; there are int8, binary"):
        code_values(items(0), None, ("int4",), levels=LEVELS, options=EvaluationOptions())


@pytest.mark.parametrize("wrong", [{"codes": ("int4",)}, {"prefixes": (10,)}])
def test_what_cannot_be_is_refused_before_anything_is_ranked(wrong):
    def progress(task, done, total):
        pytest.fail(f"{task} has begun")

    options = EvaluationOptions(progress=progress, **wrong)
    with pytest.raises(ConfigError, match=r"no codes 'int4'|expected ascending sizes of 1 to 9"):
        evaluate_known_levels(items(0), None, levels=LEVELS, options=options, where="here")


def test_codes_of_a_row_of_zeros_are_zeros():
    codes, scales = int8_codes(np.array([[0.0, 0.0], [1.0, -2.0]]))
    assert codes.tolist() == [[0, 0], [64, -127]]
    assert np.isfinite(scales).all()


@given(st.lists(st.lists(st.integers(-40, 40), min_size=11, max_size=11).filter(any), min_size=2, max_size=6))
def test_codes_equal_their_twins(rows):
    table = np.array(rows) / 8
    codes, scales = int8_codes(table)
    assert [reference.int8_code(row) for row in table.tolist()] == codes.tolist()
    assert (np.abs(codes * scales[:, None] - table) <= scales[:, None] * 0.5001).all()
    bits = binary_codes(table)
    assert bits.shape == (len(rows), 2)
    expected = [[sum((a >= 0) != (b >= 0) for a, b in zip(x, y, strict=True)) for y in rows] for x in rows]
    assert hamming_distances(bits, bits).tolist() == expected


@pytest.mark.parametrize("with_gallery", [False, True])
def test_values_of_codes_are_those_of_their_scores(with_gallery):
    query, gallery = items(2), items(3, 31) if with_gallery else None
    found = code_values(query, gallery, ("int8", "binary"), levels=LEVELS, options=EvaluationOptions(metrics=METRICS))
    sides = query, gallery or query
    cosines = [int8_codes(side[0])[0].astype(np.float64) for side in sides]
    other = () if gallery is None else (cosines[1], gallery[1])
    expected = evaluate(cosines[0], query[1], *other, levels=LEVELS, metrics=METRICS)
    assert found["int8"] == pytest.approx(expected.values, nan_ok=True)
    distances = hamming_distances(*(binary_codes(side[0]) for side in sides))
    for row, metric in ((found["binary"], "AP/fine"), (found["binary"], "AP/coarse")):
        level = LEVELS.index(metric[3:])
        values = []
        for q in range(len(query[0])):
            kept = [j for j in range(len(sides[1][0])) if with_gallery or j != q]
            positive = [int((sides[1][1][j, : level + 1] == query[1][q, : level + 1]).any()) for j in kept]
            values.append(reference.average_precision([-float(distances[q, j]) for j in kept], positive))
        assert row[metric] == pytest.approx(np.nanmean(values))


def test_evaluate_prints_what_prefixes_and_codes_cost(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows, labels = items(4, 40)
    np.save("e.npy", rows)
    pl.DataFrame({"fine": labels[:, 0], "coarse": labels[:, 1]}).write_parquet("e.parquet")
    words = ["evaluate", "--embeddings", "e.npy", "--labels", "e.parquet", "--levels", "fine,coarse"]

    def run(*more):
        with pytest.raises(SystemExit) as stop:
            main([*words, *more])
        return (stop.value.code, *capfd.readouterr())

    code, out, err = run("--truncate-dim", "3,9", "--quantize", "int8,binary", "--json", "--metrics", "R@1,H-AP")
    assert (code, err) == (0, "")
    found = json.loads(out)
    settings = found["settings"]
    assert settings["prefixes"]["9"] == pytest.approx(found["values"])
    assert set(settings["codes"]) == {"int8", "binary"}
    code, out, _ = run("--truncate-dim", "3,9", "--quantize", "binary", "--metrics", "R@1,H-AP")
    assert code == 0
    lost = settings["codes"]["binary"]["H-AP"] - found["values"]["H-AP"]
    assert "| first 3 |" in out
    assert f"{lost:+.4f}" in out
    assert run("--truncate-dim", "9,3")[0] == 2
    code, _, err = run("--quantize", "int4")
    assert (code, "int8, binary" in err) == (2, True)
    main_words = ["evaluate", "--embeddings", "e.npy", "--data", "nowhere", "--truncate-dim", "3"]
    with pytest.raises(SystemExit):
        main(main_words)
    assert "goes with splits or files" in capfd.readouterr().err


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 6), st.integers(0, 20))
def test_a_search_by_a_prefix_ranks_its_shortlist_by_the_whole(seed, prefix, k, more):
    query, gallery = items(seed, 3)[0], items(seed + 1, 20)[0]
    found, scores = prefix_neighbors(query, gallery, k, prefix=prefix, shortlist=k + more)
    listed, _ = nearest_neighbors(query[:, :prefix], gallery[:, :prefix], min(k + more, 20))
    every, cosines = nearest_neighbors(query, gallery, 20)
    for row in range(3):
        kept = [(j, c) for j, c in zip(every[row], cosines[row], strict=True) if j in listed[row]][:k]
        assert found[row].tolist() == [j for j, _ in kept]
        np.testing.assert_allclose(scores[row], [c for _, c in kept], atol=1e-6)
    whole, _ = prefix_neighbors(query, gallery, k, prefix=prefix, shortlist=20)
    np.testing.assert_array_equal(whole, every[:, :k])


def test_a_search_by_a_prefix_refuses_what_cannot_be():
    changes: list[dict[str, Any]] = [{"prefix": 0}, {"prefix": 10}, {"shortlist": 2}]
    for wrong in changes:
        options: dict[str, Any] = {"prefix": 4, "shortlist": 5, **wrong}
        with pytest.raises(ConfigError, match="expected a prefix of 1 to 9, and a k of 1 to the shortlist"):
            prefix_neighbors(items(0)[0], items(1)[0], 3, **options)
