# Sources and private headers of parallel/ (several devices, process groups, strategies). Part of libctrt.
libctrt_core_la_SOURCES += parallel/comm.c parallel/comm.h parallel/comm_collectives.c parallel/comm_failure.c \
    parallel/comm_run.c parallel/flight_record.c parallel/flight_record.h
libctrt_core_la_SOURCES += \
    parallel/apply.c parallel/balance.c parallel/chunk.c parallel/coalesce.c parallel/devices.h parallel/gather.c \
    parallel/replicate.c parallel/scatter.c parallel/tree.c parallel/tree.h
