import itertools

import timm.data
import timm.optim
import timm.scheduler
import torch
from torch.utils.data import DataLoader

import hgld

model = timm.create_model("resnet18", pretrained=False, num_classes=0)  # if online, use pretrained=True
config = timm.data.resolve_model_data_config(model)
training = timm.data.create_transform(**config, is_training=True)
dataset = hgld.open_dataset("shards", "train", transform=training)
loader = DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=4, k=2))
loss = hgld.losses.HAPPIER(num_classes=dataset.hierarchy.num_classes[0], dim=model.num_features)
optimizer = timm.optim.create_optimizer_v2(torch.nn.ModuleList([model, loss]), opt="adamw", lr=1e-3)
schedule, _ = timm.scheduler.create_scheduler_v2(optimizer, num_epochs=2)
for epoch in range(2):
    for batch in itertools.islice(loader, 3):  # three batches per epoch, for a short example
        value = loss(model(batch["image"]), batch["labels"])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    schedule.step(epoch + 1)
    print(epoch, float(value))
