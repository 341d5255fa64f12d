from pathlib import Path

import fiftyone

import hgld
from hgld.pipelines.conversion.convert import convert

convert(hgld.open_dataset("shards"), Path("for-fiftyone"), "fiftyone")  # hgld convert shards --to fiftyone ...
kind = fiftyone.types.FiftyOneDataset
dataset = fiftyone.Dataset.from_dir(dataset_dir="for-fiftyone", dataset_type=kind)
for level, field in dataset.info["fields"].items():
    print(level, dataset.count_values(f"{field}.label"))  # fiftyone.launch_app(dataset) shows them
