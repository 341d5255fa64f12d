from pathlib import Path

import polars as pl
import pytest

from hgld.errors import TableError
from hgld.pipelines.hierarchy.names.landmark_tables import read_landmarks, run_names
from hgld.pipelines.stage import silent


@pytest.fixture
def table(tmp_path):
    def write(content: str | bytes, name: str = "train.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_reads_gldv2s_own_form_and_ignores_other_columns(table):
    train = table('landmark_id,category\n7,"http://x/Category:A,_B"\n3,http://x/Category:""C""\n')
    index = table("\ufeffcategory,note, landmark_id \r\nc,\u2028,3\r\n\r\nd,y,1\r\n", "index.csv")
    read = read_landmarks({"train": train, "index": index})
    assert [(m.split, m.landmark_id, m.category) for m in read[0]] == [
        ("index", 1, "d"),
        ("index", 3, "c"),
        ("train", 3, 'http://x/Category:""C""'),
        ("train", 7, "http://x/Category:A,_B"),
    ]
    assert read[1].is_empty()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"train\.csv is empty"),
        (" \n", r"train\.csv is empty"),
        ("landmark_id,category\n", "no rows below the header"),
        ("id,category\n1,a\n", r"lacks the column 'landmark_id'; found 'id', 'category', expected"),
        ("landmark_id;category\n1;a\n", r"lacks the column 'landmark_id'; found 'landmark_id;category'"),
        ("landmark_id,category,category\n1,a,b\n", "has the column 'category' twice"),
        ("landmark_id,category\n1,a\n2,b\n1,c\n", r"landmark 1 has the category 'a' in line 2 and 'c' in line 4"),
        ("landmark_id,category\n1,a\nx1,b\n", r"line 3: landmark_id is 'x1'; expected a whole number"),
        ("landmark_id,category\n-1,a\n", "line 2: landmark_id is '-1'"),
        ("landmark_id,category\n1.0,a\n", "line 2: landmark_id is '1.0'"),
        ("landmark_id,category\n\u0661,a\n", "line 2: landmark_id is"),
        ("landmark_id,category\n" + "9" * 30 + ",a\n", "expected a whole number"),
        ("landmark_id,category\n1,a\n2,b,_c\n", "line 3: 3 cells where the header has 2"),
        ("landmark_id,category\n1\n", "line 2: 1 cells where the header has 2"),
        (b"landmark_id,category\n1,a\n2,caf\xe9\n", r"line 3: not UTF-8 \(byte 0xe9\)"),
        ('landmark_id,category\n1,"a\n2,b\n', "line 2: not valid CSV"),
        ("landmark_id,category\n1,a\n2," + "x" * 200_000 + "\n", "line 3: not valid CSV .*131,072"),
    ],
)
def test_a_bad_table_is_refused_with_file_line_and_the_way_out(table, content, message):
    with pytest.raises(TableError, match=message) as caught:
        read_landmarks({"train": table(content)})
    assert "train.csv" in str(caught.value)


def test_the_scraped_form_needs_its_names_and_keeps_them_untouched(table):
    with pytest.raises(TableError, match="lacks the column 'supercategory'"):
        read_landmarks({"train": table("landmark_id,category\n1,a\n")}, named=True)
    read = read_landmarks({"train": table("landmark_id,category,supercategory\n1,a, Castle \n2,b,  \n")}, named=True)
    assert [m.names for m in read[0]] == [(" Castle ",), ()]


def test_a_table_that_was_scraped_already(tmp_path):
    table = tmp_path / "names.csv"
    table.write_text(
        "landmark_id,name,category,supercategory\n"
        "3,c,http://commons.wikimedia.org/wiki/Category:C,\n"
        "1,a,http://commons.wikimedia.org/wiki/Category:A,castle\n"
        '1,a,http://commons.wikimedia.org/wiki/Category:A,"church, ruined"\n'
        "1,a,http://commons.wikimedia.org/wiki/Category:A,castle\n"
    )
    done = run_names(tmp_path / "stages", {"train": table}, silent)
    frame = pl.read_parquet(done.path("landmarks.parquet"))
    assert frame["landmark_id"].to_list() == [1, 3]
    assert frame["names"].to_list() == [["castle", "church, ruined"], []]
    assert frame["classes"].to_list() == [[None, None], []]
    assert frame["status"].to_list() == ["found", "no-instance-of"]
    dropped = pl.read_parquet(done.path("dropped.parquet"))
    assert dropped.rows() == [
        ("train", 5, "1", "http://commons.wikimedia.org/wiki/Category:A", "repeats an earlier row")
    ]
    assert not run_names(tmp_path / "stages", {"train": table}, silent).was_run
