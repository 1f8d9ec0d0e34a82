# Sources and private headers of nn/: modules, losses, optimizers, checkpoints. Part of libctrt.
libctrt_core_la_SOURCES +=
