# Sources and private headers of parallel/ (several devices, process groups, strategies). Part of libctrt.
libctrt_core_la_SOURCES += parallel/comm.c parallel/comm.h parallel/comm_collectives.c parallel/comm_failure.c \
    parallel/comm_run.c parallel/flight_record.c parallel/flight_record.h
