import open_clip
import torch
from torch.utils.data import DataLoader

import hgld

# If online, use "ViT-B-32" and pretrained="laion2b_s34b_b79k"; this model is small and has random weights.
towers = {"vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}}
text = {"text_cfg": {"context_length": 8, "vocab_size": 64, "width": 64, "heads": 2, "layers": 1}}
model = open_clip.CLIP(embed_dim=64, **towers, **text).visual
prepare = open_clip.image_transform(64, is_train=True)
dataset = hgld.open_dataset("shards", "train", transform=prepare)
loader = DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=8, k=4))
loss = hgld.losses.HAPPIER(num_classes=dataset.hierarchy.num_classes[0], dim=64)
groups = [{"params": model.parameters(), "lr": 1e-5}, {"params": loss.parameters(), "lr": 1e-2}]
optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
for batch in loader:
    with torch.autocast("cpu", torch.bfloat16):  # the loss computes scores in float32
        value = loss(model(batch["image"]), batch["labels"])
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
print(float(value))
