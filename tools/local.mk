# The command `ctrt`, which uses only the public API. Each subcommand has a row in the table of main.c.
bin_PROGRAMS += ctrt
ctrt_SOURCES  = tools/check.c tools/coverage.c tools/info.c tools/json.c tools/json.h tools/main.c tools/memory.c \
                tools/new_plugin.c tools/ops.c tools/run.c tools/run.h tools/run_nodes.c tools/run_output.c \
                tools/run_ranks.c tools/tool.h
ctrt_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests/conformance -Itools \
                -DTEMPLATES_FROM_BIN='"$(ctrt_bin_to_templates)"'
ctrt_LDFLAGS  = $(AM_LDFLAGS) $(PROGRAM_RPATH)
ctrt_LDADD    = libconformance.la libctrt.la -ldl

# The HTML pages of `ctrt memory` and `ctrt ops --coverage`, converted to C string literals.
EXTRA_DIST           += tools/coverage.html tools/page.html
BUILT_SOURCES        += tools/coverage.inc tools/page.inc
CLEANFILES           += tools/coverage.inc tools/page.inc
nodist_ctrt_SOURCES   = tools/coverage.inc tools/page.inc
HTML_LITERAL          = sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$$/\\n"/'
tools/page.inc: tools/page.html
	$(AM_V_GEN)$(MKDIR_P) tools && $(HTML_LITERAL) $(srcdir)/tools/page.html >$@.tmp && mv $@.tmp $@
tools/coverage.inc: tools/coverage.html
	$(AM_V_GEN)$(MKDIR_P) tools && $(HTML_LITERAL) $(srcdir)/tools/coverage.html >$@.tmp && mv $@.tmp $@
tools/ctrt-memory.$(OBJEXT): tools/page.inc
tools/ctrt-coverage.$(OBJEXT): tools/coverage.inc

bashcompletiondir      = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = tools/bash-completion/ctrt
