"""Fast implementations of operations: Triton kernels and CUDA graphs. No other package uses either.

A module here has the interface of what it replaces, and leaves to the reference what it does not support, so each can be
deleted on its own. Gains are those of a captured training step of a complete network without the module, relative to
one with it (`holdfast bench kernels`); a module that gains less than 5% in every network goes.

====================  =============================  ====================================================================
module                reference                      gain
====================  =============================  ====================================================================
`cast`                autocast, layer norm, biases   ViT-S/16 1.36, MiniLM 1.18 (`norm_kernels`)
`batch_norm`          batch norm, residual, ReLU     ResNet-50 1.34 (`norm_kernels`)
`short_attention`     attention of torch             MiniLM 1.19 (`attention_kernels`)
`fused_experts`       `ops.routing`, `ops.balance`,  GMoE 1.06 with the best expert, 1.07 with two
                      `ops.expert_dispatch`          (`experts_kernels`, `routing_kernels`); eager 1.14 to 1.21
`recurrent_loop`      `ops.recurrent_step`           word LSTM with a bank 1.05 (`recurrent_kernels`)
`table_reads`         `ops.reads`                    MiniLM with product keys 8.2, because a step without it is not
                                                     captured (`memory_kernels`)
`augment_kernels`     `data.augment`                 ResNet-50 1.12, ViT-S/16 1.16
`graphs`              eager passes                   steps of ViT-S/16 1.96, of ResNet-50 1.62 (`holdfast bench gpu`)
====================  =============================  ====================================================================

`registry` finds out whether Triton works, and gives modules their kernels.
"""
