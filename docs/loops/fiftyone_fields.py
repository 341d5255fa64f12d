import subprocess

import fiftyone

subprocess.run(["hgld", "convert", "shards", "--to", "fiftyone", "--out", "for-fiftyone"], check=True)
dataset = fiftyone.Dataset.from_dir(dataset_dir="for-fiftyone", dataset_type=fiftyone.types.FiftyOneDataset)
for level, field in dataset.info["fields"].items():
    print(level, dataset.count_values(f"{field}.label"))  # fiftyone.launch_app(dataset) shows them
