"""Sources of names: lists and tables of classes, and tables of landmarks."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import TableError
from hgld.pipelines.hierarchy.names.classes import read_items
from hgld.pipelines.hierarchy.names.landmark_tables import read_landmarks, run_names
from hgld.pipelines.stage import silent
from tests.rows import each_row


def written(folder, text, name="classes.txt"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def names_of(folder, text):
    return [item.name for item in read_items(written(folder, text)).items]


@each_row(
    ("text", "names"),
    [
        ("apple\npear\n", ["apple", "pear"]),
        ("\ufeffapple\r\npear\r\n", ["apple", "pear"]),
        ("Paris, France\nRome, Italy\n", ["Paris, France", "Rome, Italy"]),
        ('"Paris, France"\n"12"" nail"\n12" nail\n"Ritz" hotel', ["Paris, France", '12" nail', '"Ritz" hotel']),
        ('name\n"Paris, France"\nRome\n', ["Paris, France", "Rome"]),
        ("id;name\n1;Paris, France\n", ["Paris, France"]),
        ("id\tNAME \n1\tParis, France\n", ["Paris, France"]),
        ("قلعة\nמגדל\n城\nЗамок\n", ["قلعة", "מגדל", "城", "Замок"]),
        ("one\u2028line\nnext\x0bone", ["one\u2028line", "next\x0bone"]),
        ("\n\nname,count\n,\napple,3\n", ["apple"]),
    ],
)
def test_lists_and_tables_of_names_are_distinguished(tmp_path, text, names):
    assert names_of(tmp_path, text) == names


def test_all_columns_of_a_class_table_are_read(tmp_path):
    table = (
        "extra,name,id,count,description,images,language\n"
        'x,"crane, tall",n01,12,"a bird, with legs",a/1.jpg|b 2.jpg; c.jpg,EN\n'
        ",crane,n02\n"
    )
    read = read_items(written(tmp_path, table, "t.csv"))
    bird, machine = read.items
    assert (bird.name, bird.id, bird.count, bird.language) == ("crane, tall", "n01", 12, "en")
    assert bird.description == "a bird, with legs"
    assert bird.images == ("a/1.jpg", "b 2.jpg", "c.jpg")
    assert (machine.id, machine.count, machine.description, machine.images) == ("n02", 1, None, ())
    assert read.notes == ("ignored columns: extra.",)


def test_excluded_rows_have_line_and_reason(tmp_path):
    read = read_items(written(tmp_path, "id,name\n1,crane\n\n2,crane\n1,crane\n3,\n,,\n".replace(",,", ",")))
    assert [(item.id, item.name) for item in read.items] == [("1", "crane"), ("2", "crane")]
    assert read.dropped == [
        (3, "", "", "empty row"),
        (5, "1", "crane", "repeats the id of an earlier row"),
        (6, "3", "", "no name"),
        (7, "", "", "empty row"),
    ]
    plain = read_items(written(tmp_path, "oak\n \noak\n"))
    assert [line for line, _, _, _ in plain.dropped] == [2, 3]
    assert [reason for _, _, _, reason in plain.dropped] == ["empty row", "repeats the name of an earlier row"]


@each_row(
    ("text", "said"),
    [
        ("", "is empty; expected at least one row"),
        ("name\n\n", "no name in its 1 rows"),
        ("id,label\n1,apple\n", "lacks the column 'name'; found 'id', 'label'. Rename the column"),
        ("name,name\na,b\n", "has the column 'name' twice"),
        ("id,name\n1,a\n1,b\n", "line 2 and 'b' in line 3; expected one name per id"),
        ("name,count\na,many\n", "line 2: count is 'many'; expected a whole number from 1"),
        ("name,language\na,<b>\n", "line 2: language is '<b>'"),
        ("name,id\na,1,2\n", "line 2: 3 cells where the header has 2"),
        ('name,id\n"a,1\n', "line 2: not a valid table"),
        ("name\n" + "a" * 2001, "name has 2,001 characters; expected at most 2,000"),
        ("a" * 131_073 + "\noak\n", "line 1: name has 131,073 characters; expected at most 2,000"),
        (b"caf\xe9\n", "line 1: not UTF-8"),
    ],
)
def test_invalid_class_lists_are_refused_with_their_line(tmp_path, text, said):
    with pytest.raises(TableError, match=r".*") as refused:
        read_items(written(tmp_path, text))
    assert said in str(refused.value)
    assert "classes.txt" in str(refused.value)


NAMES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1, max_size=30)


@given(st.lists(NAMES, min_size=1, max_size=20))
def test_every_line_becomes_an_item_or_an_excluded_row(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("lists")
    try:
        read = read_items(written(folder, "\n".join(lines) + "\n"))
    except TableError:
        return  # a table without names, or with only a header, is refused
    told = {item.line for item in read.items} | {line for line, _, _, _ in read.dropped}
    first_is_header = "name" in lines[0].lower()
    assert first_is_header or told == set(range(1, len(lines) + 1))


@pytest.fixture
def table(tmp_path):
    def write(content, name="train.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_landmark_tables_are_sorted_and_extra_columns_ignored(table):
    train = table('landmark_id,category\n7,"http://x/Category:A,_B"\n3,http://x/Category:""C""\n')
    index = table("\ufeffcategory,note, landmark_id \r\nc,\u2028,3\r\n\r\nd,y,1\r\n", "index.csv")
    read = read_landmarks({"train": train, "index": index})
    assert read[0].drop("names").rows() == [
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
        ("landmark_id,category\n", "no rows below the header"),
        ("id,category\n1,a\n", r"lacks the column 'landmark_id'; found 'id', 'category', expected"),
        ("landmark_id,category\n1,a\n2,b\n1,c\n", r"landmark 1 has the category 'a' in line 2 and 'c' in line 4"),
        ("landmark_id,category\n1,a\nx1,b\n", r"line 3: landmark_id is 'x1'; expected a whole number"),
        ("landmark_id,category\n\u0661,a\n", "line 2: landmark_id is"),
        ("landmark_id,category\n" + "9" * 30 + ",a\n", "expected a whole number"),
        (b"landmark_id,category\n1,a\n2,caf\xe9\n", r"line 3: not UTF-8 \(byte 0xe9\)"),
        ("landmark_id,category\n1,a\n2," + "x" * 200_000 + "\n", "line 3: not valid CSV .*131,072"),
    ],
)
def test_invalid_landmark_tables_are_refused_with_file_and_line(table, content, message):
    with pytest.raises(TableError, match=message) as caught:
        read_landmarks({"train": table(content)})
    assert "train.csv" in str(caught.value)


def test_already_scraped_table_is_imported_as_a_scrape_stage(tmp_path):
    table = tmp_path / "names.csv"
    table.write_text(
        "landmark_id,name,category,supercategory\n"
        "3,c,http://commons.wikimedia.org/wiki/Category:C,\n"
        "1,a,http://commons.wikimedia.org/wiki/Category:A, Castle \n"
        '1,a,http://commons.wikimedia.org/wiki/Category:A,"church, ruined"\n'
        "1,a,http://commons.wikimedia.org/wiki/Category:A, Castle \n"
    )
    done = run_names(tmp_path / "stages", {"train": table}, silent)
    frame = pl.read_parquet(done.path("landmarks.parquet"))
    assert frame["landmark_id"].to_list() == [1, 3]
    assert frame["names"].to_list() == [[" Castle ", "church, ruined"], []]
    assert frame["classes"].to_list() == [[None, None], []]
    assert frame["status"].to_list() == ["found", "no-instance-of"]
    dropped = pl.read_parquet(done.path("dropped.parquet"))
    assert dropped.rows() == [
        ("train", 5, "1", "http://commons.wikimedia.org/wiki/Category:A", "repeats an earlier row")
    ]
    assert not run_names(tmp_path / "stages", {"train": table}, silent).was_run
