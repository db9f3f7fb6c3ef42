"""The bodies of kernels, in Triton's language.

Each is tested against its reference implementation in the module of the same name.

Nothing here is imported before a kernel is launched, so that what runs on a CPU needs no Triton.  Addresses are int64:
a batch of 4,096 rows of 131,072 logits has more elements than int32 counts.
"""
