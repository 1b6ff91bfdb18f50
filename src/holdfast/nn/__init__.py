"""Networks: tensors in, tensors out; no domains, no optimizers, no files of the user's."""
