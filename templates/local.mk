# Templates of plugins, which `ctrt new-plugin` copies: the files of all kinds are in common/, those of a kind in the
# folder with its name. They are installed with the headers.
nobase_dist_pkgdata_DATA = \
    templates/common/CMakeLists.txt templates/common/Makefile templates/common/README.md templates/common/check.sh \
    templates/common/debian/changelog templates/common/debian/control templates/common/debian/copyright \
    templates/common/debian/rules templates/common/debian/source/format templates/common/meson.build \
    templates/common/try.c \
    templates/backend/plugin.c templates/backend/steps.sh \
    templates/backend-async/backend.h templates/backend-async/buffers.c templates/backend-async/kernels.c \
    templates/backend-async/plugin.c templates/backend-async/queue.c templates/backend-async/steps.sh \
    templates/comm/plugin.c templates/comm/steps.sh \
    templates/image/plugin.c templates/image/steps.sh templates/image/try.c \
    templates/kernels/plugin.c templates/kernels/steps.sh \
    templates/memory/plugin.c templates/memory/steps.sh \
    templates/strategy/plugin.c templates/strategy/steps.sh
