import torch
from torch.utils.data import DataLoader

import hgld

dataset = hgld.open_dataset("shards", "train")
sampler = hgld.samplers.PKSampler(dataset, p=8, k=4)
loader = DataLoader(dataset, batch_sampler=sampler)
model = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 64))
loss = hgld.losses.HAPPIER(num_classes=dataset.hierarchy.num_classes[0], dim=64)
optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in loader:
        value = loss(model(batch["image"] / 255), batch["labels"])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

metric = hgld.metrics.Retrieval(dataset.levels, metrics=("R@1", "H-AP"))
with torch.inference_mode():
    for batch in DataLoader(hgld.open_dataset("shards", "test"), batch_size=64):
        metric.update(model(batch["image"] / 255), batch["labels"])
print(metric.report().to_markdown())
