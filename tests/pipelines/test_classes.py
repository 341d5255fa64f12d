"""Lists of arbitrary class names: lists that are read or rejected, and rows that are excluded with their line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import TableError
from hgld.pipelines.hierarchy.names.classes import read_items


def written(folder: Path, text: str | bytes, name: str = "classes.txt") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def names_of(folder: Path, text: str | bytes) -> list[str]:
    return [item.name for item in read_items(written(folder, text)).items]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("apple\npear\n", ["apple", "pear"]),
        ("apple\npear", ["apple", "pear"]),
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
def test_lists_and_tables_are_told_apart(tmp_path, text, names):
    assert names_of(tmp_path, text) == names


def test_every_column_is_read(tmp_path):
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


def test_what_is_left_out_has_its_line_and_reason(tmp_path):
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; expected at least one row"),
        ("\n \n", "is empty"),
        ("name\n\n", "no name in its 1 rows"),
        ("id,label\n1,apple\n", "lacks the column 'name'; found 'id', 'label'. Rename the column"),
        ("name,name\na,b\n", "has the column 'name' twice"),
        ("id,name\n1,a\n1,b\n", "line 2 and 'b' in line 3; expected one name per id"),
        ("name,count\na,many\n", "line 2: count is 'many'; expected a whole number from 1"),
        ("name,count\na,0\n", "count is '0'"),
        ("name,language\na,<b>\n", "line 2: language is '<b>'"),
        ("name,id\na,1,2\n", "line 2: 3 cells where the header has 2"),
        ('name,id\n"a,1\n', "line 2: not a valid table"),
        ("name\n" + "a" * 2001, "name has 2,001 characters; expected at most 2,000"),
        (b"caf\xe9\n", "line 1: not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path, text, said):
    with pytest.raises(TableError, match=r".*") as refused:
        read_items(written(tmp_path, text))
    assert said in str(refused.value)
    assert "classes.txt" in str(refused.value)


NAMES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1, max_size=30)


@given(st.lists(NAMES, min_size=1, max_size=20))
def test_every_line_is_an_item_or_listed(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("lists")
    try:
        read = read_items(written(folder, "\n".join(lines) + "\n"))
    except TableError:
        return  # the whole table is an error: no names, or only a header
    told = {item.line for item in read.items} | {line for line, _, _, _ in read.dropped}
    first_is_header = "name" in lines[0].lower()
    assert first_is_header or told == set(range(1, len(lines) + 1))
