# Memory policies (and later strategies and communicators), each a plugin of its own.
memory_caching_sources = plugins/memory/caching.c plugins/memory/caching.h plugins/memory/large.c plugins/memory/sizes.c \
                         plugins/memory/small.c
memory_direct_sources = plugins/memory/direct.c

if PLUGIN_MEMORY_CACHING
plugin_LTLIBRARIES += memory-caching.la
memory_caching_la_SOURCES  = $(memory_caching_sources)
memory_caching_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
memory_caching_la_CFLAGS   = $(PLUGIN_CFLAGS)
memory_caching_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif

if PLUGIN_MEMORY_DIRECT
plugin_LTLIBRARIES += memory-direct.la
memory_direct_la_SOURCES  = $(memory_direct_sources)
memory_direct_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
memory_direct_la_CFLAGS   = $(PLUGIN_CFLAGS)
memory_direct_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif
