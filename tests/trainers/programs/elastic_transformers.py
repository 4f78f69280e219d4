"""The Trainer of transformers on GPT-2, by configuration: stopped at any step, and continued on other ranks."""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from collectives.elastic.trainers.transformers_trainer import elastic_trainer
from tests.trainers.programs.report import report

torch.manual_seed(0)
sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
whole = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # dropout would depend on the ranks
config = GPT2Config(**sizes, **whole, bos_token_id=None, eos_token_id=None)
arguments = TrainingArguments(
    output_dir=str(Path(sys.argv[1]).parent / "trainer"),
    use_cpu=True,
    ddp_backend="gloo",
    per_device_train_batch_size=4,
    num_train_epochs=3,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
words = [[(start + 5 * place) % 64 for place in range(16)] for start in range(128)]
data = [{"input_ids": each, "labels": each} for each in words]
trainer = elastic_trainer(
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data), sys.argv[2], micro_batches=4
)
trainer.train()
if trainer.is_world_process_zero():
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    report(losses, trainer.model, trainer.state.global_step)
