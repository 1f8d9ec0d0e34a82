# Sources and private headers of parallel/ (several devices, process groups, strategies). Part of libctrt.
libctrt_core_la_SOURCES +=
