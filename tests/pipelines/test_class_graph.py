import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.errors import TableError
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph

CHURCHES = {
    "Q2977": ("cathedral", ["Q16970"]),
    "Q16970": ("church building", ["Q24398318"]),
    "Q24398318": ("religious building", ["Q41176"]),
    "Q23413": ("castle", ["Q57821", "Q41176"]),
    "Q57821": ("fortification", ["Q811979"]),
    "Q41176": ("building", ["Q811979"]),
    "Q811979": ("architectural structure", ["Q35120"]),
    "Q8502": ("mountain", ["Q271669"]),
    "Q271669": ("landform", ["Q35120"]),
    "Q35120": ("entity", []),
}


def graph_of(table):
    return ClassGraph({i: label for i, (label, _) in table.items()}, {i: above for i, (_, above) in table.items()})


@pytest.fixture
def churches():
    return graph_of(CHURCHES)


def test_ancestors_carry_the_least_distance_nearest_first(churches):
    assert list(churches.ancestors("Q23413").items()) == [("Q41176", 1), ("Q57821", 1), ("Q811979", 2), ("Q35120", 3)]
    assert churches.ancestors("Q35120") == {}
    assert churches.ancestors("Q1") == {}
    assert churches.label("Q2977") == "cathedral"
    assert churches.label("Q1") is None


def test_rows_are_near_where_ancestors_are_shared(churches):
    names = [["Q2977"], ["Q16970"], ["Q23413"], ["Q8502"], ["Q999999"], []]
    rows = churches.rows(names)
    alike = rows @ rows.T
    assert alike[0, 1] > alike[0, 2] > alike[0, 3] == pytest.approx(0, abs=1e-6)
    assert not rows[4:].any()
    many = churches.rows(names * 100)
    np.testing.assert_allclose((many @ many.T)[:6, :6], alike, atol=1e-5)
    assert churches.rows([]).shape[0] == 0


ids = st.integers(0, 9).map(lambda n: f"Q{n}")


@settings(deadline=None, max_examples=60)
@given(
    parents=st.dictionaries(ids, st.lists(ids, max_size=3), min_size=1),
    members=st.lists(st.lists(ids, max_size=3), min_size=1, max_size=6),
)
def test_any_graph_cycles_included_agrees_with_the_plain_reading(parents, members):
    graph = ClassGraph({}, parents)
    for class_id in graph.ids:
        for ancestor, distance in graph.ancestors(class_id).items():
            way = graph.path(class_id, ancestor)
            assert len(way) == distance + 1
            assert all(up in graph.parents(down) for down, up in itertools.pairwise(way))
    above = [
        {up for c in classes if c in graph for up in (c, *graph.ancestors(c)) if graph.information_content[up] > 0}
        for classes in members
    ]
    rows = graph.rows(members)
    for i, j in itertools.product(range(len(members)), repeat=2):
        content = [sum(graph.information_content[c] for c in of) for of in (above[i] & above[j], above[i], above[j])]
        expected = content[0] / (content[1] * content[2]) ** 0.5 if content[1] and content[2] else 0
        assert rows[i] @ rows[j] == pytest.approx(expected, abs=1e-5)


def test_read_takes_the_scrapes_table_and_refuses_others(tmp_path):
    path = tmp_path / "classes.parquet"
    schema = {"class_id": pl.String, "label": pl.String, "language": pl.String, "parents": pl.List(pl.String)}
    rows = [("Q2977", "cathedral", "en", ["Q16970"]), ("Q16970", "church building", "en", None)]
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(path)
    graph = ClassGraph.read(path)
    assert graph.ids == ("Q16970", "Q2977")
    assert graph.ancestors("Q2977") == {"Q16970": 1}
    pl.DataFrame(schema=schema).write_parquet(path)
    assert len(ClassGraph.read(path)) == 0
    pl.DataFrame({"class_id": ["Q1"]}).write_parquet(path)
    with pytest.raises(TableError, match="label"):
        ClassGraph.read(path)
    path.write_text("no parquet")
    with pytest.raises(TableError, match="not a readable parquet"):
        ClassGraph.read(path)
