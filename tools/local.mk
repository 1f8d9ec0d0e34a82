# The command `ctrt`, on the public API alone. When tools/ has its first source:
#   bin_PROGRAMS += ctrt
#   ctrt_SOURCES = tools/main.c ...
#   ctrt_LDADD   = libctrt.la
