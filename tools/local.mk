# The command `ctrt`, on the public API alone: one file a subcommand, one row each in main.c.
bin_PROGRAMS += ctrt
ctrt_SOURCES  = tools/check.c tools/info.c tools/json.c tools/json.h tools/main.c tools/tool.h
ctrt_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests/conformance
ctrt_LDADD    = libconformance.la libctrt.la
