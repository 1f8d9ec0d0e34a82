# Sources and private headers of parallel/ (several devices, process groups, strategies). Part of libctrt.
libctrt_core_la_SOURCES += parallel/comm.c parallel/comm.h parallel/comm_capture.c parallel/comm_collectives.c \
    parallel/comm_enqueued.c parallel/comm_enqueued.h parallel/comm_epoch.c parallel/comm_failure.c \
    parallel/comm_failure.h parallel/comm_join.c parallel/comm_members.c parallel/comm_memory.c parallel/comm_report.c parallel/comm_run.c parallel/comm_watch.c \
    parallel/flight_record.c parallel/flight_record.h
libctrt_core_la_SOURCES += \
    parallel/apply.c parallel/balance.c parallel/chunk.c parallel/coalesce.c parallel/devices.h parallel/gather.c \
    parallel/loss.c parallel/loss.h parallel/loss_group.c parallel/loss_parameter.c \
    parallel/replicate.c parallel/scatter.c parallel/shards.c parallel/strategy.c parallel/strategy.h \
    parallel/strategy_auto.c parallel/strategy_candidates.c parallel/strategy_candidates.h parallel/sum_tree.c \
    parallel/sync_batch_norm.c parallel/tensor_data.c parallel/tree.c parallel/tree.h
libctrt_core_la_SOURCES += \
    parallel/environment.c parallel/environment.h parallel/own_address.c parallel/own_address.h parallel/store.c \
    parallel/store.h parallel/store_auth.c parallel/store_auth.h parallel/store_clients.c parallel/store_clients.h \
    parallel/store_file.c parallel/store_job.c parallel/store_job.h parallel/store_local.c parallel/store_map.c parallel/store_map.h parallel/store_message.c \
    parallel/store_message.h parallel/store_server.c parallel/store_server.h parallel/store_tcp.c
