"""GLDv2 retrieval: the solution and submissions are read and written, and scored as the challenge does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hgld.evaluation.protocols.ground_truths
from hgld.errors import InputError, StorageError, TableError
from hgld.evaluation.protocols import (
    RetrievalSolution,
    evaluate_gldv2,
    read_retrieval_solution,
    read_submission,
    retrieve,
    score_submission,
    write_submission,
)

SOLUTION = """id,images,Usage
0000000000000001,aa bb,Public
0000000000000002,None,Ignored
0000000000000003,cc,Private
0000000000000004,dd aa ee,Private
"""


def slow_map_at_100(predicted, relevant):
    """1/min(m, 100) times the sum over k of P(k) rel(k), where an image counts once."""
    seen, total = set(), 0.0
    for k in range(1, min(len(predicted), 100) + 1):
        image = predicted[k - 1]
        rel = image in relevant and image not in seen
        seen.add(image)
        hits = len(seen & set(relevant))
        total += hits / k * rel
    return total / min(len(relevant), 100)


@pytest.fixture
def solution(tmp_path):
    file = tmp_path / "retrieval_solution_v2.1.csv"
    file.write_text(SOLUTION)
    return read_retrieval_solution(file)


def test_the_solution_is_read(solution):
    assert solution.public == {"0000000000000001": ("aa", "bb")}
    assert solution.private == {"0000000000000003": ("cc",), "0000000000000004": ("dd", "aa", "ee")}
    assert solution.ignored == {"0000000000000002"}


def test_a_submission_by_hand(solution):
    retrieved = {
        "0000000000000001": ["xx", "bb", "bb", "aa"],  # (1/2 + 2/4) / 2
        "0000000000000002": ["aa"],  # ignored
        "0000000000000004": ["dd", "ee"],  # (1 + 1) / 3; 3 is missing and counts 0
    }
    report = score_submission(retrieved, solution)
    assert report.values == pytest.approx({"mAP@100/public": 0.5, "mAP@100/private": (0 + 2 / 3) / 2})
    assert report.undefined == {"mAP@100/public": 2, "mAP@100/private": 1}
    settings = {"public": 1, "private": 2, "ignored": 1, "without_prediction": 1}
    assert settings.items() <= report.settings.items()


images = st.text("abcdef", min_size=1, max_size=2)


@given(
    st.dictionaries(
        st.text("0123456789", min_size=1, max_size=3),
        st.tuples(st.lists(images, max_size=130), st.lists(images, min_size=1, max_size=20, unique=True)),
        min_size=1,
        max_size=5,
    )
)
def test_scores_equal_their_twin(case):
    truth = {query: tuple(relevant) for query, (_, relevant) in case.items()}
    retrieved = {query: predicted for query, (predicted, _) in case.items() if predicted}
    report = score_submission(retrieved, RetrievalSolution({}, truth, frozenset()))
    expected = [slow_map_at_100(predicted, relevant) for predicted, relevant in case.values()]
    assert report.values["mAP@100/private"] == pytest.approx(math.fsum(expected) / len(expected))
    assert math.isnan(report.values["mAP@100/public"])


def test_a_submission_is_written_and_read_back(tmp_path):
    retrieved = {"0a": ["aa", "bb"], "0b": []}
    write_submission(tmp_path / "submission.csv", retrieved)
    assert (tmp_path / "submission.csv").read_text() == "id,images\n0a,aa bb\n0b,\n"
    assert read_submission(tmp_path / "submission.csv") == retrieved
    assert [p.name for p in tmp_path.iterdir()] == ["submission.csv"]


def test_a_submission_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
        write_submission(tmp_path / "none" / "submission.csv", {"a": []})
    with pytest.raises(InputError, match="101 retrieved"):
        write_submission(tmp_path / "s.csv", {"a": ["b"] * 101})
    for wrong in ("a,b", "a b", "=cmd()", "a\nb", "ä", ""):
        with pytest.raises(InputError, match="not an image id"):
            write_submission(tmp_path / "s.csv", {"a": [wrong]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,images\n1,a\n", "columns are id, images; expected id, images, Usage"),
        ("id,images,Usage\n1,a,Secret\n", "row 2, image '1': Usage is 'Secret'"),
        ("id,images,Usage\n1,a,Public\n1,b,Private\n", "row 3, image '1': expected every test image once"),
        ("id,images,Usage\n1,None,Public\n", "Public without relevant images"),
        ("id,images,Usage\n1,,Private\n", "Private without relevant images"),
        ("", "not a readable CSV table"),
    ],
)
def test_a_broken_solution_is_refused(tmp_path, text, said):
    file = tmp_path / "solution.csv"
    file.write_text(text)
    with pytest.raises(TableError, match=said):
        read_retrieval_solution(file)


def test_broken_submissions_are_refused(tmp_path, solution, monkeypatch):
    file = tmp_path / "submission.csv"
    with pytest.raises(TableError, match="cannot be read"):
        read_submission(file)
    file.write_text("id,images\na,b\na,c\n")
    with pytest.raises(TableError, match="row 3, image 'a'"):
        read_submission(file)
    with pytest.raises(InputError, match="'zz' is not in the solution"):
        score_submission({"zz": ["aa"]}, solution)
    monkeypatch.setattr(hgld.evaluation.protocols.ground_truths, "_MOST_BYTES", 3)
    with pytest.raises(TableError, match="more than 3"):
        read_submission(file)


def random_case(seed, num_index=150):
    generator = np.random.default_rng(seed)
    index_ids = [f"i{n}" for n in range(num_index)]
    query_ids = [f"q{n}" for n in range(7)]
    relevant = {
        q: tuple(generator.choice(index_ids, generator.integers(1, min(120, num_index)), replace=False))
        for q in query_ids
    }
    halves = [{q: relevant[q] for q in part} for part in (query_ids[:3], query_ids[3:6])]
    solution = RetrievalSolution(halves[0], halves[1], frozenset(query_ids[6:]))
    return generator.normal(size=(7, 8)), query_ids, generator.normal(size=(num_index, 8)), index_ids, solution


@pytest.mark.parametrize("seed", range(3))
def test_embeddings_score_as_their_submission(tmp_path, seed):
    query, query_ids, index, index_ids, solution = random_case(seed)
    direct = evaluate_gldv2(query, query_ids, index, index_ids, solution)
    write_submission(tmp_path / "s.csv", retrieve(query, query_ids, index, index_ids))
    scored = score_submission(read_submission(tmp_path / "s.csv"), solution)
    assert direct.values == pytest.approx(scored.values)
    for name in direct.values:
        np.testing.assert_allclose(direct.per_query[name], scored.per_query[name])
    assert direct.settings["protocol"] == "GLDv2 retrieval"


def test_a_small_index_is_retrieved_whole():
    query, query_ids, index, index_ids, _ = random_case(1, num_index=5)
    assert {tuple(sorted(row)) for row in retrieve(query, query_ids, index, index_ids).values()} == {tuple(index_ids)}


def test_ids_and_embeddings_belong_together():
    query, query_ids, index, index_ids, solution = random_case(2)
    with pytest.raises(InputError, match="6 query ids"):
        evaluate_gldv2(query, query_ids[:6], index, index_ids, solution)
    with pytest.raises(InputError, match=r"149 of them distinct"):
        retrieve(query, query_ids, index, [*index_ids[:-1], "i0"])
    with pytest.raises(InputError, match=r"image 'q0' of the solution has no embedding \(1 such images\)"):
        evaluate_gldv2(query[1:], query_ids[1:], index, index_ids, solution)
    with pytest.raises(InputError, match="of the solution has no embedding"):
        evaluate_gldv2(query, query_ids, index[:50], index_ids[:50], solution)
