"""Stop-and-resume of training: step boundaries, checkpoints and sample accounting for any sequence of world sizes.

A training script adopts it in three lines; `collectives.elastic.training.ElasticTraining` has them. The design and the
costs are in ``docs/elastic.md``.
"""
