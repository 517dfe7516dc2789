# One record of the log, inlined into the modules of the kernel that read the log.
#
# `protocol.message.record` has the byte table. A module passes its positions in a Layout, which it
# fills at import (`fill_layout`).

from pyromq.protocol.kernel.raw cimport View, i64, read8, read16, read32, read32_signed, read64

cdef struct Layout:
    i64 magic
    # Of a record with two IPv4 hosts; bodyLength is the last field of the head.
    i64 head_size
    i64 min_size
    i64 body_crc
    i64 queue_id
    i64 queue_offset
    i64 physical_offset
    i64 sys_flag
    # For an IPv4 born host.
    i64 store_timestamp
    i64 born_host_v6
    i64 store_host_v6
    i64 more_for_v6
    i64 max_topic
    i64 max_properties

# Positions are those in the view. The properties end with the record.
cdef struct Record:
    i64 start
    i64 end
    i64 sys_flag
    i64 body
    i64 topic
    i64 topic_end
    i64 properties
    i64 store_timestamp


cdef inline int fill_layout(Layout* layout) except -1:
    from pyromq.protocol.message import message_id, properties, record, sysflag

    layout.magic = record.MESSAGE_MAGIC
    layout.head_size = record.HEAD_SIZE_V4
    layout.min_size = record.HEAD_SIZE_V4 + record.TAIL_LENGTHS
    layout.body_crc = record.BODY_CRC_AT
    layout.queue_id = record.QUEUE_ID_AT
    layout.queue_offset = record.QUEUE_OFFSET_AT
    layout.physical_offset = record.PHYSICAL_OFFSET_AT
    layout.sys_flag = record.SYS_FLAG_AT
    layout.store_timestamp = record.STORE_TIMESTAMP_AT
    layout.born_host_v6 = sysflag.BORN_HOST_V6
    layout.store_host_v6 = sysflag.STORE_HOST_V6
    layout.more_for_v6 = message_id.HOST_SIZE_V6 - message_id.HOST_SIZE_V4
    layout.max_topic = record.MAX_TOPIC
    layout.max_properties = properties.MAX_PROPERTIES
    return 0

# The size of the record at `at`; 0 if there is none, or not all of it before `end`.
cdef inline i64 record_size(View view, i64 at, i64 end, const Layout* layout) noexcept nogil:
    cdef i64 size
    if at < 0 or end - at < layout.min_size or read32(view, at + 4) != layout.magic:
        return 0
    size = read32(view, at)
    return size if layout.min_size <= size <= end - at else 0

# Read a record of `size` bytes; False if its lengths contradict each other.
cdef inline bint read_record(View view, i64 at, i64 size, const Layout* layout, Record* record) noexcept nogil:
    cdef i64 head = layout.head_size
    cdef i64 length
    record.start = at
    record.end = at + size
    record.sys_flag = read32(view, at + layout.sys_flag)
    record.store_timestamp = at + layout.store_timestamp
    if record.sys_flag & layout.born_host_v6:
        head += layout.more_for_v6
        record.store_timestamp += layout.more_for_v6
    if record.sys_flag & layout.store_host_v6:
        head += layout.more_for_v6
    if size < head + layout.min_size - layout.head_size:
        return False
    record.body = at + head
    length = read32_signed(view, record.body - 4)
    if length < 0 or length >= record.end - record.body:
        return False
    record.topic = record.body + length + 1
    length = read8(view, record.topic - 1)
    if length > layout.max_topic or length > record.end - record.topic - 2:
        return False
    record.topic_end = record.topic + length
    record.properties = record.topic_end + 2
    length = read16(view, record.topic_end)
    return length <= layout.max_properties and record.properties + length == record.end
