# Sources and private headers of parallel/ (several devices, process groups, strategies), part of libctrt, in
# alphabetical order.

# comm: process groups: members, calls, failures, reports
libctrt_core_la_SOURCES += \
    parallel/comm/alarm.c parallel/comm/capture.c parallel/comm/collectives.c parallel/comm/comm.c \
    parallel/comm/comm.h parallel/comm/connect.c parallel/comm/enqueued.c \
    parallel/comm/environment.c parallel/comm/environment.h parallel/comm/epoch.c parallel/comm/failure.c \
    parallel/comm/failure.h parallel/comm/flight_record.c parallel/comm/flight_record.h parallel/comm/group.c \
    parallel/comm/group.h parallel/comm/join.c parallel/comm/lanes.c parallel/comm/lanes.h parallel/comm/members.c \
    parallel/comm/memory.c parallel/comm/peers.c parallel/comm/peers.h parallel/comm/report.c \
    parallel/comm/run.c parallel/comm/tracker.c parallel/comm/watch.c parallel/comm/watch.h

# replicas: scatter, gather, copies of modules, parallel threads
libctrt_core_la_SOURCES += \
    parallel/replicas/apply.c parallel/replicas/chunk.c parallel/replicas/coalesce.c parallel/replicas/devices.h \
    parallel/replicas/gather.c parallel/replicas/replicate.c parallel/replicas/scatter.c \
    parallel/replicas/tensor_data.c parallel/replicas/tree.c parallel/replicas/tree.h

# store: key-value stores: local, files, TCP
libctrt_core_la_SOURCES += \
    parallel/store/auth.c parallel/store/auth.h parallel/store/clients.c parallel/store/clients.h \
    parallel/store/file.c parallel/store/job.c parallel/store/job.h parallel/store/local.c parallel/store/map.c \
    parallel/store/map.h parallel/store/message.c parallel/store/message.h parallel/store/own_address.c \
    parallel/store/own_address.h parallel/store/server.c parallel/store/server.h parallel/store/store.c \
    parallel/store/store.h parallel/store/tcp.c

# strategy: the public functions of strategies, losses of parts, canonical sums
libctrt_core_la_SOURCES += \
    parallel/strategy/auto.c parallel/strategy/balance.c parallel/strategy/candidates.c \
    parallel/strategy/candidates.h parallel/strategy/loss.c parallel/strategy/loss.h parallel/strategy/loss_group.c \
    parallel/strategy/loss_parameter.c parallel/strategy/shards.c parallel/strategy/strategy.c \
    parallel/strategy/strategy.h parallel/strategy/sum_tree.c parallel/strategy/sync_batch_norm.c
