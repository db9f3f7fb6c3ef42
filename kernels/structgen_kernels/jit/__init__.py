"""Device functions that several kernels share, in Triton's language.

Each kernel is in the folder ``jit`` beside the module of its reference implementation and is tested against it.

Modules in a folder ``jit`` are imported at the first launch, so that use on a CPU does not need Triton.  Row offsets
are int64: a batch of 4,096 rows of 131,072 logits has more elements than int32 can index.
"""
