# The backends sim-multi and nccl-multi, from the same sources with different macros. They link libctrt.
backend_multi_sources = backends/multi/blocks.c backends/multi/device.c backends/multi/kernel.c \
    backends/multi/layout.c backends/multi/list.c backends/multi/memory.c backends/multi/multi.h \
    backends/multi/plan.c backends/multi/plugin.c backends/multi/redistribute.c backends/multi/rules.c \
    backends/multi/workers.c

if PLUGIN_SIM_MULTI
plugin_LTLIBRARIES += backend-sim-multi.la
backend_sim_multi_la_SOURCES  = $(backend_multi_sources)
backend_sim_multi_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DMULTI_NAME='"sim-multi"' -DMULTI_BASE='"sim"' \
    -DMULTI_ENGINE='"host"' -DMULTI_PARAM='"CTRT_SIM_MULTI"' -DMULTI_EXAMPLE='"sim:0,sim:1;sim:2,sim:3"'
backend_sim_multi_la_CFLAGS   = $(PLUGIN_CFLAGS)
backend_sim_multi_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
backend_sim_multi_la_LIBADD   = libctrt.la
endif

if PLUGIN_NCCL_MULTI
plugin_LTLIBRARIES += backend-nccl-multi.la
backend_nccl_multi_la_SOURCES  = $(backend_multi_sources)
backend_nccl_multi_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DMULTI_NAME='"nccl-multi"' -DMULTI_BASE='"cuda"' \
    -DMULTI_ENGINE='"nccl"' -DMULTI_PARAM='"CTRT_NCCL_MULTI"' -DMULTI_EXAMPLE='"cuda:0,cuda:1;cuda:2,cuda:3"'
backend_nccl_multi_la_CFLAGS   = $(PLUGIN_CFLAGS)
backend_nccl_multi_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
backend_nccl_multi_la_LIBADD   = libctrt.la
endif
