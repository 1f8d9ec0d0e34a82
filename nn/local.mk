# Sources and private headers of nn/ (modules, optimizers, checkpoints). Part of libctrt.
libctrt_core_la_SOURCES += \
    nn/checkpoint.c nn/checkpoint.h nn/checkpoint_optim.c nn/checkpoint_parts.c nn/checkpoint_parts.h nn/clip.c \
    nn/distribute.c nn/forward_hooks.c nn/grad_scaler.c nn/grad_scaler.h nn/grad_scaler_state.c \
    nn/inf_watch.c nn/init.c nn/layers.h \
    nn/layers_activation.c nn/layers_attention.c nn/layers_container.c nn/layers_conv.c nn/layers_dropout.c \
    nn/layers_embedding.c nn/layers_linear.c nn/layers_norm.c nn/layers_pool.c nn/module.c nn/module.h \
    nn/module_copy.c nn/module_hash.c nn/optim.c nn/optim.h nn/optim_adagrad.c nn/optim_adam.c nn/optim_dryrun.c \
    nn/optim_nadam.c nn/optim_rmsprop.c nn/optim_sgd.c nn/optim_skip.c nn/optim_state.c nn/optim_step.c \
    nn/optimizers.def nn/safetensors.h \
    nn/safetensors_read.c nn/safetensors_write.c nn/split.c nn/tensor_file.c nn/tensor_file.h \
    nn/tensor_parts.c nn/walk.c
