"""The parts artifact: what fusions of one embedding share, and the examples that they are learnt from.

adapter.npy       W fp32 [d, d] of the query adapter (`retrieval.adapter`)
lengths.npy       fp32 [m]: ln(1 + the number of characters) of each passage
field/            the labels' field (`retrieval.label_field`)
labels/           labelled training queries (`artifacts.labelled_queries`)
examples/         an array for each field of `evaluation.fusion_examples.Examples`, of training queries
dev_examples/     likewise, of dev queries, if the training queries have trained the encoder

A bundle's folder `fusion/` has the first three, and fusion.json with trees.txt (`retrieval.learned_fusion`); its
folder `labels/` is the one here. If the fusion is learnt from dev queries, `fusion/held/` has another one for each
fold of them (`retrieval.held_out`).
"""

ADAPTER, LENGTHS, FIELD, EXAMPLES = "adapter.npy", "lengths.npy", "field", "examples"
DEV_EXAMPLES = "dev_examples"
