import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import hgld

dataset = hgld.open_dataset("shards", "train")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 64))
        self.loss = hgld.losses.HAPPIER(num_classes=dataset.hierarchy.num_classes[0], dim=64)

    def forward(self, image, labels, **unused):
        return {"loss": self.loss(self.net(image / 255), labels)}


class PKTrainer(Trainer):
    def get_train_dataloader(self):
        loader = DataLoader(self.train_dataset, batch_sampler=hgld.samplers.PKSampler(self.train_dataset, p=8, k=4))
        return self.accelerator.prepare(loader)


arguments = TrainingArguments("trained", num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no")
PKTrainer(Model(), arguments, train_dataset=dataset).train()
