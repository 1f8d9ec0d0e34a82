# Sources and private headers of share/ (tensors that processes share, queues between processes). Part of libctrt.
libctrt_core_la_SOURCES += share/device_memory.c share/device_memory.h \
    share/lease.c share/lease.h share/message.c share/message.h share/queue.c share/share.c share/share.h
