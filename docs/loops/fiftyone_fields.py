from pathlib import Path

import fiftyone

import hgld

data = hgld.open_dataset("shards")
dataset = fiftyone.Dataset()
for index, row in enumerate(data.frame.select("key", "split").to_dicts()):
    file = Path("for-fiftyone", f"{row['key']}.jpg")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.read(index))
    names = zip(data.levels, data.hierarchy.names, data.labels[index].tolist(), strict=True)
    fields = {level: fiftyone.Classification(label=known[label]) for level, known, label in names if label >= 0}
    dataset.add_sample(fiftyone.Sample(filepath=str(file), tags=[row["split"]], **fields))
print(dataset)  # fiftyone.launch_app(dataset) shows it
