# Sources and private headers of data/ (datasets, samplers, the loader and its workers). Part of libctrt.
libctrt_core_la_SOURCES += \
    data/collate.c data/dataset.c data/dataset.h data/epoch.c data/fork_server.c data/fork_server.h data/loader.c \
    data/loader.h data/random.c data/ring.c data/ring.h data/sample_copy.c data/sampler.c data/sampler.h \
    data/samplers.c data/take.c data/team.c data/team.h data/training_checkpoint.c \
    data/training_generators.c data/training_generators.h data/worker.c data/worker.h

# Ready datasets, images, transforms.
libctrt_core_la_SOURCES += \
    data/cifar.c data/csv.c data/exif.c data/gzip.c data/idx.c data/image.h data/image_file.c data/image_folder.c \
    data/image_sample.c data/mapped_file.c data/mapped_file.h data/npy.c data/parsers.h data/pixels.c \
    data/pixels.h data/pixels_avx512.c data/pnm.c data/resize.c data/rows.c data/rows.h data/safetensors.c \
    data/tokens.c data/transforms.c
