# Sources and private headers of nn/ (modules, optimizers, checkpoints), part of libctrt, in alphabetical order.

# checkpoint: files of tensors, modules and optimizers
libctrt_core_la_SOURCES += \
    nn/checkpoint/checkpoint.c nn/checkpoint/checkpoint.h nn/checkpoint/optim.c nn/checkpoint/parts.c \
    nn/checkpoint/parts.h nn/checkpoint/safetensors.h nn/checkpoint/safetensors_read.c \
    nn/checkpoint/safetensors_write.c nn/checkpoint/tensor_file.c nn/checkpoint/tensor_file.h \
    nn/checkpoint/tensor_parts.c

# layers: the standard modules
libctrt_core_la_SOURCES += \
    nn/layers/activation.c nn/layers/attention.c nn/layers/container.c nn/layers/conv.c nn/layers/dropout.c \
    nn/layers/embedding.c nn/layers/layers.h nn/layers/linear.c nn/layers/norm.c nn/layers/pool.c

# module: modules: trees, copies, hooks, initialization
libctrt_core_la_SOURCES += \
    nn/module/copy.c nn/module/distribute.c nn/module/forward_hooks.c nn/module/hash.c nn/module/init.c \
    nn/module/module.c nn/module/module.h nn/module/split.c nn/module/walk.c

# optim: optimizers, gradient scalers
libctrt_core_la_SOURCES += \
    nn/optim/adagrad.c nn/optim/adam.c nn/optim/clip.c nn/optim/dryrun.c nn/optim/grad_scaler.c \
    nn/optim/grad_scaler.h nn/optim/grad_scaler_state.c nn/optim/inf_watch.c nn/optim/nadam.c nn/optim/optim.c \
    nn/optim/optim.h nn/optim/optimizers.def nn/optim/rmsprop.c nn/optim/sgd.c nn/optim/skip.c nn/optim/state.c \
    nn/optim/step.c
