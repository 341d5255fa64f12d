import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import hgld

accelerator = Accelerator(cpu=True)  # accelerate launch --num_processes 2 --cpu accelerate_two.py
dataset, tests = hgld.open_dataset("shards", "train"), hgld.open_dataset("shards", "test")
loader = DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=8, k=4))
net = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 64))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)  # each process gets different batches of 8 x 4
loss = hgld.losses.ROADMAP()
for batch in loader:
    accelerator.backward(loss(model(batch["image"] / 255), batch["labels"]))
    optimizer.step()
    optimizer.zero_grad()

metric = hgld.metrics.Retrieval(dataset.levels, metrics=("R@1", "H-AP"))
with torch.inference_mode():
    for batch in accelerator.prepare(DataLoader(tests, batch_size=64)):
        metric.update(model(batch["image"] / 255), batch["labels"], batch["index"])
accelerator.print(metric.compute())
accelerator.end_training()
