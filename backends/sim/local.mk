# The sim backend: backend-sim.so, simulated devices. Sources and headers of backends/sim/, in alphabetical order.
backend_sim_sources = backends/sim/blocks.c backends/sim/control.c backends/sim/control.h backends/sim/copies.c \
    backends/sim/device.c backends/sim/events.c backends/sim/faults.c backends/sim/guard.c backends/sim/kernels.c \
    backends/sim/memory.c backends/sim/options.c backends/sim/pages.c backends/sim/plugin.c backends/sim/queue.c \
    backends/sim/sim.h backends/sim/space.c backends/sim/usage.c backends/sim/worker.c

if PLUGIN_SIM
plugin_LTLIBRARIES += backend-sim.la
backend_sim_la_SOURCES  = $(backend_sim_sources)
backend_sim_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
backend_sim_la_CFLAGS   = $(PLUGIN_CFLAGS)
backend_sim_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif
