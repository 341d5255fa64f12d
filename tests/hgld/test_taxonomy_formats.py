"""Readers of taxonomy formats: files in their published layouts, and errors that contain the row or entry."""

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, HierarchyError, InputError, TableError
from hgld.taxonomy import FORMAT_LINES, PARENTS_RULES
from hgld.taxonomy.formats import FORMATS, Document, read_levels, read_taxonomy, sniff, write_edge_list
from hgld.taxonomy.levels import ParentsRule
from tests.hgld.small_trees import hierarchies, in_order
from tests.rows import each_row


@pytest.fixture
def write(tmp_path):
    """``write(name, content)`` writes a text, or a value as JSON, to a file and returns its path."""

    def put(name, content):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8", newline="")
        return place

    return put


def links(taxonomy):
    """Return all pairs of child and parent names."""
    pairs = zip(taxonomy.names, taxonomy.parents, strict=True)
    return {(name, taxonomy.names[p]) for name, parents in pairs for p in parents}


def test_formats_and_parent_rules_of_the_cli_match_the_library():
    assert list(FORMAT_LINES) == list(FORMATS)
    assert ParentsRule.__args__ == PARENTS_RULES


@given(hierarchies(), st.sampled_from(["hgld", "edge-list"]))
def test_written_hierarchies_are_detected_and_read_back(tmp_path_factory, tree, kind):
    file = tmp_path_factory.mktemp("tree") / "file"
    tree.to_parquet(file) if kind == "hgld" else write_edge_list(tree, file)
    assert sniff(Document(file)) == kind
    levels = read_levels(file)
    expected = (in_order(tree), kind) if kind == "edge-list" else (tree, "hgld")
    assert (levels.hierarchy, levels.taxonomy.format) == expected
    assert read_levels(file, cut=f"ranks:{','.join(tree.levels)}").hierarchy == in_order(tree)


# -- edge lists --------------------------------------------------------------------------------------------------------


def test_edge_lists_with_tabs_and_commas_are_read(write):
    both = {
        "tab": 'parent\tchild\nanimal\tcat\nanimal\tdog "x"\n\t animal\n\n',
        "comma": '\ufeffparent,child\r\nanimal,cat\r\nanimal,"dog ""x"""\r\n,animal\r\nanimal,cat\r\n',
    }
    for found in [read_taxonomy(write(name, text)) for name, text in both.items()]:
        assert (found.format, set(found.ids)) == ("edge-list", {"animal", "cat", 'dog "x"'})
        assert links(found) == {("cat", "animal"), ('dog "x"', "animal")}
    assert read_taxonomy(write("comma", both["comma"])).counts == {"repeated links": 1}


# -- WordNet -----------------------------------------------------------------------------------------------------------

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by  \n  2 Princeton University  \n"
SYNSETS = {  # key: words, pointers as in WordNet 3.0 (symbol, key), gloss
    "entity": ("entity 0", [("~", "dog"), ("~", "animal")], "that which is perceived or known"),
    "animal": ("animal 0 animate_being 0 beast 0", [("@", "entity"), ("~", "dog")], "a living organism | with a bar"),
    "canine": ("canine 0 canid 0", [("@", "animal"), ("~", "dog"), ("%p", "tooth")], "of the family Canidae"),
    "pet": ("domestic_animal 0", [("@", "animal"), ("~", "dog")], "tame"),
    "dog": ("dog 0 domestic_dog 0 Canis_familiaris 0", [("@", "canine"), ("@", "pet")], "a dog"),
    "rex": ("Rex 0", [("@i", "dog")], "a dog of that name"),
    "frump": ("frump 0 dog 0", [("@", "entity")], "a dull person"),
    "tooth": ("canine 1", [("@", "entity")], "a tooth"),
}


def wordnet_files():
    """Return a small WordNet database in the format of wndb(5WN), with byte offsets, written without hgld."""

    def line(key, offsets):
        words, pointers, gloss = SYNSETS[key]
        led = "".join(f" {symbol} {offsets[target]} n 0000" for symbol, target in pointers)
        return f"{offsets[key]} 05 n {len(words.split()) // 2:02x} {words} {len(pointers):03d}{led} | {gloss}  \n"

    offsets = dict.fromkeys(SYNSETS, "00000000")
    place, placed = len(LICENCE.encode()), {}
    for key in SYNSETS:
        placed[key] = f"{place:08d}"
        place += len(line(key, offsets).encode())
    senses = {"dog": ["dog", "frump"], "canine": ["tooth", "canine"], "rex": ["rex"]}
    index = [f"{w} n {len(s)} 2 @ ~ {len(s)} 1 {' '.join(placed[k] for k in s)}  \n" for w, s in sorted(senses.items())]
    return LICENCE + "".join(line(key, placed) for key in SYNSETS), LICENCE + "".join(index), placed


def test_wordnet_is_read_with_ordered_senses(write):
    data, index, offsets = wordnet_files()
    file = write("dict/data.noun", data)
    write("dict/index.noun", index)
    for place in (file, file.parent):
        found = read_taxonomy(place)
        assert (found.format, found.by_usage) == ("wordnet", True)
        assert links(found) >= {("dog", "canine"), ("dog", "domestic animal"), ("Rex", "dog"), ("animal", "entity")}
        assert len(links(found)) == 8
        assert found.ids[found.names.index("animal")] == f"n{offsets['animal']}"
        meant = [found.ids[p] for p in found.synonyms["canine"]]
        # senses are in the order of the index, not of the data file
        assert meant == [f"n{offsets['tooth']}", f"n{offsets['canine']}"]
        assert [found.names[p] for p in found.synonyms["Canis familiaris"]] == ["dog"]
    levels = read_levels(file, parents="first", cut="root:1")
    assert {"canine", "canine [n" + offsets["tooth"] + "]"} & set(levels.hierarchy.names[0]) == {"canine"}
    file.with_name("index.noun").unlink()
    assert not read_taxonomy(file).by_usage


# -- Open Images, iNaturalist, COCO ------------------------------------------------------------------------------------

OPEN_IMAGES = {  # structure of bbox_labels_600_hierarchy.json
    "LabelName": "/m/0bl9f",
    "Subcategory": [
        {
            "LabelName": "/m/09j2d",
            "Subcategory": [
                {"LabelName": "/m/01b638"},
                {"LabelName": "/m/0176mf", "Part": [{"LabelName": "/m/01b638"}]},
            ],
        },
        {"LabelName": "/m/09j5n", "Subcategory": [{"LabelName": "/m/01b638"}]},
        {"LabelName": "/m/0242l"},
    ],
}


def test_open_images_is_read_with_its_descriptions(write):
    file = write("bbox_labels_600_hierarchy.json", OPEN_IMAGES)
    assert "/m/01b638" in read_taxonomy(file).names
    write("class-descriptions-boxable.csv", "/m/01b638,Boot\n/m/0176mf,Belt\n/m/09j2d,Clothing\n/m/09j5n,Footwear\n")
    found = read_taxonomy(file)
    assert found.format == "open-images"
    assert links(found) >= {("Boot", "Clothing"), ("Boot", "Footwear"), ("Belt", "Clothing"), ("Clothing", "/m/0bl9f")}
    assert found.counts == {"parts (not subclasses)": 1, "classes without a description": 2}
    write("oidv7-class-descriptions.csv", "LabelName,DisplayName\n/m/0242l,Coin\n/m/01b638,other\n")
    assert {"Coin", "Boot"} <= set(read_taxonomy(file).names)
    levels = read_levels(file, parents="first")
    assert levels.hierarchy.names == (("Belt", "Boot", "Coin"), ("Clothing", "Coin"))


INATURALIST = [  # structure of categories in iNaturalist competitions since 2018
    {
        "id": number,
        "name": name,
        "common_name": common,
        "supercategory": group,
        "kingdom": "Animalia",
        "phylum": "Chordata",
        "class": cls,
        "order": order,
        "family": family,
        "genus": name.split()[0],
    }
    for number, (name, common, group, cls, order, family) in enumerate(
        [
            ("Corvus corax", "Common Raven", "Birds", "Aves", "Passeriformes", "Corvidae"),
            ("Corvus corone", "Carrion Crow", "Birds", "Aves", "Passeriformes", "Corvidae"),
            ("Vulpes vulpes", "Red Fox", "Mammals", "Mammalia", "Carnivora", "Canidae"),
        ]
    )
]


def test_categories_of_inaturalist_and_coco_are_read(write):
    for content in (INATURALIST, {"images": [], "categories": INATURALIST}):
        file = write("categories.json", content)
        found, tree = read_taxonomy(file), read_levels(file).hierarchy
        assert (found.format, found.counts) == ("categories", {"supercategories (across the ranks)": 3})
        assert tree.levels == ("species", "genus", "family", "order", "class", "phylum", "kingdom")
        assert tree.names[0] == ("Corvus corax", "Corvus corone", "Vulpes vulpes")
        assert tree.names[4] == ("Aves", "Mammalia")
        assert [found.names[p] for p in found.synonyms["Red Fox"]] == ["Vulpes vulpes"]
    plain = write("coco.json", {"categories": [{"id": 1, "name": "dog", "supercategory": "animal"}]})
    assert (read_taxonomy(plain).format, links(read_taxonomy(plain))) == ("categories", {("dog", "animal")})


# -- Darwin Core, paths, columns, folders ------------------------------------------------------------------------------


def test_darwin_core_is_read_with_synonyms(write):
    rows = [
        "taxonID\tparentNameUsageID\tacceptedNameUsageID\tscientificName\ttaxonRank\ttaxonomicStatus",
        "1\t\t\tAnimalia\tkingdom\taccepted",
        '20\t1\t20\tCorvus "L."\tgenus\taccepted',
        "21\t20\t\tCorvus corax Linnaeus, 1758\tspecies\taccepted",
        "22\t20\t21\tCorvus clericus\tspecies\tsynonym",
    ]
    file = write("Taxon.tsv", "\n".join(rows) + "\n")
    found = read_taxonomy(file)
    assert found.format == "darwin-core"
    assert links(found) == {('Corvus "L."', "Animalia"), ("Corvus corax Linnaeus, 1758", 'Corvus "L."')}
    assert found.counts == {"synonyms (further names of other taxa)": 1}
    assert found.synonyms["Corvus clericus"] == (2,)
    assert read_levels(file).hierarchy.levels == ("species", "genus", "kingdom")


def test_paths_columns_and_folders_are_read(write, tmp_path):
    text = "label,mid,top,path\nbeagle,dog,animal,animal > dog_x > beagle\nhound,dog,animal,animal > dog_x > beagle\n"
    file = write("labels.csv", text)
    found = read_taxonomy(file)
    assert (found.format, links(found)) == ("paths", {("beagle", "dog_x"), ("dog_x", "animal")})
    assert found.synonyms == {"hound": (2,)}
    tree = read_levels(file, levels=("label", "mid", "top")).hierarchy
    assert (tree.levels, tree.names) == (("label", "mid", "top"), (("beagle", "hound"), ("dog",), ("animal",)))
    for folder in ("made/animal/dog/beagle", "made/animal/cat", "made/plant", "made/.git/x"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "made/animal/photo.jpg").write_text("")
    (tmp_path / "made/animal/loop").symlink_to(tmp_path / "made")
    found = read_taxonomy(tmp_path / "made")
    assert (found.format, links(found)) == ("folders", {("beagle", "dog"), ("dog", "animal"), ("cat", "animal")})
    assert found.counts == {"hidden folders": 1, "links to folders": 1}


# -- refusals ----------------------------------------------------------------------------------------------------------

DATA, INDEX, OFFSETS = wordnet_files()
TAXA = "taxonID,parentNameUsageID,acceptedNameUsageID,scientificName\n1,,,Animalia\n20,1,,Corvus\n"


@each_row(
    ("content", "kind", "words"),
    [
        ("child,parent\na,b\nc,c\n", "auto", "line 3: 'c' is its own parent"),
        ("child,parent\na,b\n,c\n", "auto", "line 3: an empty id"),
        ("child,parent\na\n", "auto", "line 2: 1 cells where the header has 2"),
        ("child,parent,child\na,b,c\n", "auto", "has the column 'child' twice"),
        ("child,parent\n", "auto", "has no classes"),
        ("cat,animal\n", "auto", "a table with the columns 'cat', 'animal'; expected a taxonomy"),
        (DATA.replace("05 n 03 animal", "05 n ff animal"), "auto", "line 4: .* is not a synset"),
        (DATA.replace(f"@ {OFFSETS['pet']}", "@ 09999999"), "auto", r"not in the file: 'n09999999' \(line 7\)"),
        (DATA + DATA.splitlines(keepends=True)[-1], "auto", "also the id of line"),
        ('{"LabelName": "/m/0", "Subcategory": [' * 200_000 + "]}" * 200_000, "auto", "not valid JSON"),
        ('{"LabelName": "/m/0", "Subcategory": [5]}', "auto", "entry 2 under '/m/0' is '5'; expected an object"),
        ('{"a": 1}', "auto", "JSON with the keys 'a'; expected a taxonomy"),
        (json.dumps([INATURALIST[0], 5]), "auto", "category 2 is '5'; expected an object with a number id"),
        (f"{TAXA}21,99,,c\n", "auto", r"parents that are not in the file: '99' \(line 4\)"),
        (f"{TAXA}22,20,99,c\n", "auto", "line 4: a synonym of '99'"),
        ("path\nanimal >> dog\n", "auto", "line 2: the path 'animal >> dog' has an empty part"),
        ("\x00\x01", "auto", r"a file of unknown content; expected a taxonomy\. Give its format"),
        ("a", "folders", "is a file; expected a folder"),
    ],
)
def test_taxonomy_errors_contain_the_row_or_entry(tmp_path, content, kind, words):
    file = tmp_path / "data.noun"
    file.write_text(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}.*({words})"):
        read_taxonomy(file, kind)


def test_unusable_arguments_and_files_are_refused(write, tmp_path, monkeypatch):
    write("both/index.noun", INDEX.replace(OFFSETS["frump"], "09999999"))
    with pytest.raises(HierarchyError, match=r"index\.noun, line 4: 'dog' means 'n09999999', which"):
        read_taxonomy(write("both/data.noun", DATA))
    with pytest.raises(ConfigError, match="there is no format 'csv'; expected auto or one of hgld"):
        read_taxonomy(write("x.csv", "a"), "csv")
    with pytest.raises(TableError, match=r"lacks the column 'x'; found 'label', 'mid'"):
        read_taxonomy(write("x.csv", "label,mid\na,b\n"), "columns", columns=("label", "x"))
    with pytest.raises(HierarchyError, match="does not exist"):
        read_taxonomy(tmp_path / "none")
    monkeypatch.setattr("hgld.taxonomy.formats.MOST_BYTES", 10)
    with pytest.raises(HierarchyError, match="too large for a taxonomy"):
        read_taxonomy(write("x.csv", "child,parent\na,b\n"))


DAMAGE = [b"9" * 5000, *b'|null|[]|-1|1e999|NaN|\xff|\x00|"|,|\n|\t|[|}'.split(b"|")]
WHOLE = {
    "wordnet": DATA,
    "open-images": json.dumps(OPEN_IMAGES),
    "categories": json.dumps(INATURALIST),
    "darwin-core": "taxonID,parentNameUsageID,scientificName,taxonRank\n1,,Animalia,kingdom\n2,1,Corvus,genus\n",
    "edge-list": "child,parent,name,rank\ncat,animal,Cat,kind\ndog,animal,,\nanimal,,,\n",
    "paths": "label,path\nbeagle,animal > dog > beagle\ncat,animal > cat\n",
    "columns": "species,genus\na b,x\nc,x\nd,\n",
}


@given(st.data(), st.sampled_from(list(WHOLE)))
def test_damaged_files_are_read_or_refused(tmp_path_factory, data, kind):
    file, content = tmp_path_factory.mktemp("damaged") / "file", WHOLE[kind].encode()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(start + 8, len(content))))
        content = content[:start] + data.draw(st.sampled_from(DAMAGE)) + content[end:]
    file.write_bytes(content)
    for form in ("auto", kind):
        with contextlib.suppress(InputError):
            read_levels(file, form, parents="first", cut="root")


def test_real_taxonomies_have_the_published_numbers_of_classes(real_data):
    places = real_data / "taxonomies"
    assert len(read_levels(places / "overture_places" / "labels.csv", cut="root:0").hierarchy.names[1]) == 22
    geonames = read_levels(places / "geonames" / "labels.csv", parents="first", levels=("label", "mid", "top"))
    assert geonames.hierarchy.num_classes == (631, 9, 3)
    assert geonames.counts == {"classes under several parents": 29, "parents left out": 30}
