# Example programs; each builds outside this tree with pkg-config alone. They are part of the archive, and
# tests/installed.sh builds them against the installed tree.
EXTRA_DIST += \
    examples/CMakeLists.txt examples/Makefile examples/meson.build examples/data/README.md examples/data/digits.csv \
    examples/digits.c examples/ensemble.c examples/gpt.c examples/hogwild.c examples/loader.c examples/multi.c \
    examples/resnet.c
