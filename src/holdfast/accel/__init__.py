"""Fast implementations of operations: Triton kernels and CUDA graphs. No other package uses either.

A module here has the interface of what it replaces, and leaves to the reference what it does not support, so each can
be deleted on its own. A gain is the duration of a captured training step of a complete network without the module,
relative to one with it (`holdfast bench kernels`); a module that gains less than 5% in every network goes.

| module | its kernels | reference | gain |
|---|---|---|---|
| `cast` | `norm_kernels` | autocast, layer norm, gradients of biases | ViT-S/16 1.36, MiniLM 1.18 |
| `batch_norm` | `norm_kernels` | batch norm, residual, ReLU of torch | ResNet-50 1.34 |
| `short_attention` | `attention_kernels` | attention of torch | MiniLM 1.19 |
| `fused_experts` | `experts_kernels`, `routing_kernels` | `nn.experts.layer` with `ops` | GMoE 1.06, top 2 1.07 |
| `table_reads` | `memory_kernels` | `ops.reads` | MiniLM with product keys 8.2: without, no step is captured |
| `recurrent_loop` | `recurrent_kernels` | `ops.recurrent_step` | word LSTM with a bank 1.05 |
| - | `augment_kernels` | `data.augment` | ResNet-50 1.12, ViT-S/16 1.16 |
| `graphs`, `captured_prediction` | - | eager passes | ViT-S/16 1.96, ResNet-50 1.62 (`holdfast bench gpu`) |

`registry` finds out whether Triton works, and gives modules their kernels.
"""
