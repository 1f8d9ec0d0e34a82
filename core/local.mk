# Sources and private headers of core/, floor by floor. Append in alphabetical order.

# base: status and messages, log, parameters, containers
libctrt_core_la_SOURCES +=

# registry: plugins, components, selection
libctrt_core_la_SOURCES +=

# device: device, stream, event
libctrt_core_la_SOURCES +=

# memory: storage, allocator interface, accounting
libctrt_core_la_SOURCES +=

# tensor: dtype, shape, view, creation, printing, DLPack
libctrt_core_la_SOURCES +=

# ops: ops.def, dispatch, the front of each family
libctrt_core_la_SOURCES +=

# autograd: tape, engine, the derivatives of each family
libctrt_core_la_SOURCES +=
