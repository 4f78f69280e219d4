"""Written after the `run_glue_no_trainer` example of transformers: a small BERT, Accelerate, made-up sentences."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

WORDS, LENGTH, SENTENCES = 100, 12, 64

set_seed(5)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=2, **sizes))
sentences = torch.randint(WORDS, (SENTENCES, LENGTH))
data = [{"input_ids": each, "labels": each.sum() % 2} for each in sentences]
training, validation = DataLoader(data, 4, shuffle=True), DataLoader(data[:16], 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=16)
model, optimizer, training, validation, schedule = accelerator.prepare(
    model, optimizer, training, validation, schedule
)
for _ in range(2):
    model.train()
    for batch in training:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    for batch in validation:
        with torch.no_grad():
            guessed = model(**batch).logits.argmax(-1)
        guessed, labels = accelerator.gather_for_metrics((guessed, batch["labels"]))
        right += (guessed == labels).sum().item()
    accelerator.print("right:", right)
accelerator.end_training()
