# The command `ctrt`, which uses only the public API. Each subcommand has a row in the table of main.c.
bin_PROGRAMS += ctrt
ctrt_SOURCES  = tools/check.c tools/info.c tools/json.c tools/json.h tools/main.c tools/memory.c \
                tools/new_plugin.c tools/ops.c tools/run.c tools/run.h tools/run_nodes.c tools/run_output.c \
                tools/run_ranks.c tools/tool.h
ctrt_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests/conformance -Itools \
                -DTEMPLATES_FROM_BIN='"$(ctrt_bin_to_templates)"'
ctrt_LDFLAGS  = $(AM_LDFLAGS) $(PROGRAM_RPATH)
ctrt_LDADD    = libconformance.la libctrt.la -ldl

# The HTML page of `ctrt memory`, converted to a C string literal.
EXTRA_DIST           += tools/page.html
BUILT_SOURCES        += tools/page.inc
CLEANFILES           += tools/page.inc
nodist_ctrt_SOURCES   = tools/page.inc
tools/page.inc: tools/page.html
	$(AM_V_GEN)$(MKDIR_P) tools && sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$$/\\n"/' $(srcdir)/tools/page.html >$@.tmp && mv $@.tmp $@
tools/ctrt-memory.$(OBJEXT): tools/page.inc

bashcompletiondir      = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = tools/bash-completion/ctrt
