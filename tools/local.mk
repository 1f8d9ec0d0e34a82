# The command `ctrt`, on the public API alone: one file a subcommand, one row each in main.c.
bin_PROGRAMS += ctrt
ctrt_SOURCES  = tools/info.c tools/json.c tools/json.h tools/main.c tools/tool.h
ctrt_LDADD    = libctrt.la
