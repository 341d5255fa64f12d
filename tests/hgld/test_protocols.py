"""Average precision by the trapezoid rule, against a reference, and readers of published ground truth files."""

import math
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError, TableError
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.protocols.by_labels import average_over_levels
from hgld.evaluation.protocols.ground_truths import read_in_shop, read_retrieval_solution, read_revisited
from hgld.evaluation.protocols.landmarks import positive_positions, trapezoid_ap, truncated_precision
from tests.rows import each_row, refused

# -- the trapezoid rule -----------------------------------------------------------------------------------------------


def slow_positions(scores, relevant, left_out):
    """Return the ranks of the positives, from 0, without the items ``left_out``; negatives precede tied positives."""
    kept = [j for j in range(len(scores)) if j not in left_out]
    order = sorted(kept, key=lambda j: (-scores[j], j in relevant))
    return [place for place, j in enumerate(order) if j in relevant]


def slow_area(positions, num_relevant):
    """Return the area under the line through (recall, precision) just before and after every positive."""
    area = 0.0
    for found, place in enumerate(positions):
        before = 1.0 if place == 0 else found / place
        after = (found + 1) / (place + 1)
        area += (before + after) / 2 * (1 / num_relevant)
    return area


def slow_precision(positions, k):
    depth = min(positions[-1] + 1, k)
    return sum(place + 1 <= depth for place in positions) / depth


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(["positive", "negative", "junk"])), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_trapezoid_values_equal_reference_in_any_gallery_order(items, random):
    def positions(listed):
        scores, kind = np.array([s for s, _ in listed], np.float32), np.array([k for _, k in listed])
        return positive_positions(np.sort(scores), scores[kind == "positive"], scores[kind == "junk"])

    found = positions(items)
    relevant, junk = ({j for j, (_, kind) in enumerate(items) if kind == of} for of in ("positive", "junk"))
    expected = slow_positions([score for score, _ in items], relevant, junk)
    assert found.tolist() == expected == positions(random.sample(items, len(items))).tolist()
    if not relevant:
        assert math.isnan(trapezoid_ap(found))
        assert math.isnan(truncated_precision(found, 5))
        return
    assert trapezoid_ap(found) == pytest.approx(slow_area(expected, len(relevant)), rel=1e-12)
    for k in (1, 3, 50):
        assert truncated_precision(found, k) == pytest.approx(slow_precision(expected, k), rel=1e-12)


# -- relevance from labels -----------------------------------------------------------------------------------------


def test_level_average_of_a_query_excludes_levels_without_relevant_items():
    labels = np.array([[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1]])
    embeddings = np.random.default_rng(0).normal(size=(6, 4))
    report = evaluate(embeddings, labels, levels=("fine", "in/outdoor"), metrics=("AP", "H-AP"))
    average = average_over_levels(report)
    values = average.values
    assert values["AP/average"] == pytest.approx((values["AP/fine"] + values["AP/in/outdoor"]) / 2)
    assert "H-AP/average" not in values
    columns = [average.per_query[f"AP/{level}"].to_list() for level in ("fine", "in/outdoor", "average")]
    for fine_value, coarse, mean in zip(*columns, strict=True):
        assert mean == pytest.approx(coarse if math.isnan(fine_value) else (fine_value + coarse) / 2)
    with pytest.raises(ConfigError, match="expected the same binary metrics"):
        average_over_levels(evaluate(embeddings, labels[:, 0], metrics=("AP",)))


# -- ground truths ----------------------------------------------------------------------------------------------------

SOLUTION = "id,images,Usage\n01,aa bb,Public\n02,None,Ignored\n03,cc,Private\n04,dd aa ee,Private\n"
IN_SHOP = """3
image_name item_id evaluation_status
img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 train
img/WOMEN/Dresses/id_00000001/01_1_front.jpg id_00000001 query
img/WOMEN/Dresses/id_00000001/01_2_side.jpg id_00000001 gallery
"""


def test_published_ground_truth_lists_are_read(tmp_path):
    (tmp_path / "s.csv").write_text(SOLUTION)
    found = read_retrieval_solution(tmp_path / "s.csv")
    assert found.public == {"01": ("aa", "bb")}
    assert found.private == {"03": ("cc",), "04": ("dd", "aa", "ee")}
    assert found.ignored == {"02"}
    (tmp_path / "list.txt").write_text(IN_SHOP)
    table = read_in_shop(tmp_path / "list.txt")
    assert table["split"].to_list() == ["train", "query", "gallery"]
    assert table["label"].to_list() == [1, 0, 0]
    assert table["item"][1] == "id_00000001"


def read_list(read, text, *, tmp_path):
    file = tmp_path / "list"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    read(file)


test_broken_ground_truth_lists_are_refused = refused(
    read_list,
    [
        (read_retrieval_solution, "id,images\n1,a\n", "columns are id, images; expected id, images, Usage"),
        (read_retrieval_solution, "id,images,Usage\n1,a,Secret\n", "row 2, image '1': Usage is 'Secret'"),
        (read_retrieval_solution, "id,images,Usage\n1,a,Public\n1,b,Private\n", "row 3, image '1': .*; expected every"),
        (read_retrieval_solution, "id,images,Usage\n1,None,Public\n", "no relevant images, but Usage is Public"),
        (read_retrieval_solution, "id,images,Usage\n1,,Private\n", "no relevant images, but Usage is Private"),
        (read_in_shop, IN_SHOP.replace("3", "4", 1), "3 images; its first line says '4'"),
        (read_in_shop, IN_SHOP.replace("item_id ", ""), "then the header"),
        (read_in_shop, IN_SHOP.replace(" query", " test"), "row 4 is"),
        (read_in_shop, "", "is empty"),
        (read_in_shop, b"\xff\xfe\x00", "not UTF-8"),
        (read_in_shop, None, "cannot be read"),
    ],
    TableError,
)


def ground_truth(**changes):
    first = {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": np.array([0]), "hard": np.array([1, 3]), "junk": np.array([2])}
    second = {"bbx": (1.0, 2.0, 3.0, 4), "easy": [3], "hard": np.array([]), "junk": [np.int64(0), 1]}
    truth = {"imlist": ["all_souls_13", "christ_179", "oxford_3410", "balliol_51"], "qimlist": ["q_1", "q_2"]}
    return truth | {"gnd": [first | changes, second]}


@each_row(("protocol", "dtype"), list(enumerate(["<i8", ">i4", "u1", "<i2", "<i8", ">u4"])))
def test_published_pickle_is_read_under_every_protocol(tmp_path, protocol, dtype):
    file = tmp_path / "gnd_roxford5k.pkl"
    hard = np.array([1, 3], dtype)
    more = [hard, hard, np.array([1.5], "<f4"), None, True, 2**70]
    file.write_bytes(pickle.dumps({**ground_truth(hard=hard), "more": more}, protocol))
    truth = read_revisited(file)
    assert (truth.images[2], truth.queries) == ("oxford_3410", ("q_1", "q_2"))
    found = [part.tolist() for parts in (truth.easy, truth.hard, truth.junk) for part in parts]
    assert found == [[0], [3], [1, 3], [], [2], [0, 1]]
    assert truth.boxes.tolist() == [[136.5, 34.1, 648.5, 955.7], [1.0, 2.0, 3.0, 4.0]]


def test_pickle_of_python_2_is_read(tmp_path):
    # Python 2, pickle protocol 2: a str is a SHORT_BINSTRING, and array data is a str
    data = struct.pack("<3q", 0, 1, 2)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array += b"(K\x01K\x03\x85cnumpy\ndtype\nU\x02i8K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    array += b"K\x00tb\x89U" + bytes([len(data)]) + data + b"tb"
    entry = b"}(U\x04easy" + array + b"U\x04hard]U\x04junk]U\x03bbx(K\x01K\x02K\x03K\x04tu"
    file = tmp_path / "python2.pkl"
    file.write_bytes(b"\x80\x02}(U\x06imlist](U\x01aU\x01bU\x01ceU\x07qimlist]U\x01qaU\x03gnd]" + entry + b"au.")
    assert read_revisited(file).easy[0].tolist() == [0, 1, 2]


class Reduced:
    def __init__(self, *reduction):
        self.reduction = reduction

    def __reduce__(self):
        return self.reduction


ATTACKS = {
    "command": Reduced(os.system, ("touch attacked",)),
    "load": Reduced(np.load, ("x.npy",)),
    "state": Reduced(Reduced, (1,), {"reduction": 2}),
    "set": {1, 2},
    "objects": np.array([{}], object),
    "records": np.zeros(2, [("a", "i4")]),
    "date": np.datetime64("2026-01-01"),
}


@each_row("attack", ATTACKS)
def test_pickle_with_code_or_foreign_types_is_refused(tmp_path, monkeypatch, attack):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "attack.pkl"
    for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
        file.write_bytes(pickle.dumps(ground_truth(more=ATTACKS[attack]), protocol))
        with pytest.raises(InputError, match="only lists, dicts, text"):
            read_revisited(file)
        assert not (tmp_path / "attacked").exists()


DEEP = b")" + b"\x85" * 200_000  # 200,000 nested tuples


@each_row(
    "program",
    [
        *(b"", b"\x80\x02.", b"\x80\x02K\x01", b"\x80\x02(.", b"\x80\x02K\x01K\x02.", b"\x80\x02]K\x01K\x02e."),
        *(b"\x80\x02K\x01a.", b"\x80\x02h\x07.", b"\x80\x02}(K\x01u.", b"\x80\x02]]s.", b"\x80\x02K\x01K\x02b."),
        *(b"\x80\x02X\xff\xff\xff\x7fabc.", b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", b"\x80\x02\x82\x01."),
        *(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.", b"\x80\x02P1\n.", b"I12x\n.", b"garbage of no kind"),
        *(b"\x80\x02c__builtin__\neval\n.", b"\x80\x02}" + DEEP + b"K\x01s."),
        b"\x80\x02cnumpy\ndtype\n" + DEEP + b"\x85R.",
        b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(J\xff\xff\xff\x7fcnumpy\ndtype\nU\x02i8\x85RK\x01U\x01CtR.",
    ],
)
def test_broken_and_hostile_pickles_are_refused(tmp_path, program):
    file = tmp_path / "broken.pkl"
    file.write_bytes(program)
    with pytest.raises(InputError, match=r"broken\.pkl"):
        read_revisited(file)


def read_pickled(data, *, tmp_path):
    file = tmp_path / "gnd.pkl"
    file.write_bytes(pickle.dumps(data))
    read_revisited(file)


test_malformed_ground_truth_is_refused = refused(
    read_pickled,
    [
        ([1, 2], "expected a dict with imlist"),
        (ground_truth() | {"imlist": [1]}, "imlist is not a list of image names"),
        (ground_truth() | {"gnd": ground_truth()["gnd"][:1]}, "gnd has 1 entries; expected 2"),
        (ground_truth() | {"gnd": [1, 2]}, "gnd is not a list of dicts"),
        (ground_truth(easy=None), r"gnd\[0\]\['easy'\]"),
        (ground_truth(hard=np.array([4])), r"gnd\[0\]\['hard'\].*4 images"),
        (ground_truth(hard=[0]), "lists an image twice"),
        (ground_truth(bbx=[1, 2]), "four numbers"),
    ],
    InputError,
)


def test_missing_and_oversized_pickles_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        read_revisited(tmp_path / "none.pkl")
    monkeypatch.setattr("hgld.evaluation.protocols.ground_truths._MOST_PICKLE_BYTES", 10)
    (tmp_path / "big.pkl").write_bytes(pickle.dumps(ground_truth()))
    with pytest.raises(InputError, match="at most 10"):
        read_revisited(tmp_path / "big.pkl")
