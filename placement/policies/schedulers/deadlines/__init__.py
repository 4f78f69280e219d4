"""The deadline schedulers that interrupt no job: DRS, the EDF family, LLF, FIFO and the batches of Themis."""
