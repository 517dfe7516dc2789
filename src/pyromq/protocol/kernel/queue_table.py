# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""The queues that take plain sends, found by topic and queue id in a hash table.

Queues have numbers in the order in which they were added. A removed queue keeps its number, so that
it can be added again.
"""

import cython
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.pyromq.protocol.kernel.raw import faults, is_at, read8, view_of

#: Room for queues at first; it doubles when it is full.
FIRST_CAPACITY = 64
#: Slots of the hash table per queue.
SLOTS_PER_QUEUE = 4


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class QueueTable:
    """The queues, and the objects that own them."""

    def __init__(self) -> None:
        self.owners = []
        self.topics = []
        self.grow()

    def __dealloc__(self):
        free(self.queues)
        free(self.slots)

    def add(self, topic, queue_id, owner):
        """Add a queue, or replace its owner."""
        name = view_of(topic)
        number = self.find(name, 0, name.size, queue_id)
        if number < 0:
            number = len(self.owners)
            if number == self.capacity:
                self.grow()
            self.owners.append(None)
            self.topics.append(topic)
            queue = cython.address(self.queues[number])
            queue.topic = name
            queue.queue_id = queue_id
            queue.run = 0
            self.insert(number)
        self.owners[number] = owner

    def remove(self, topic, queue_id):
        """Remove a queue, if it is here."""
        name = view_of(topic)
        number = self.find(name, 0, name.size, queue_id)
        if number >= 0:
            self.owners[number] = None

    def find(self, view, at, end, queue_id):
        """Return the number of a queue whose topic is between `at` and `end`, or -1."""
        slot: cython.longlong = cython.cast(
            cython.longlong, hash_of(view, at, end, queue_id) & self.slot_mask
        )
        while self.slots[slot]:
            number = cython.cast(cython.longlong, self.slots[slot]) - 1
            queue = cython.address(self.queues[number])
            if (
                queue.queue_id == queue_id
                and queue.topic.size == end - at
                and is_at(view, at, end, queue.topic)
            ):
                return number
            slot = (slot + 1) & self.slot_mask
        return -1

    def prepare(self, number, run):
        """Read where a queue ends, once per run; return False if it was removed."""
        queue = cython.address(self.queues[number])
        if queue.run == run:
            return True
        owner = self.owners[number]
        if owner is None:
            return False
        queue.next_offset = owner.next_offset
        queue.room = owner.room
        queue.count = 0
        queue.run = run
        return True

    def grow(self):
        """Double the room for queues, and their hash table."""
        capacity: cython.longlong = self.capacity * 2 or FIRST_CAPACITY
        slots = calloc(capacity * SLOTS_PER_QUEUE, cython.sizeof(u32))
        if slots == cython.NULL:
            raise MemoryError
        queues = realloc(self.queues, capacity * cython.sizeof(Queue))
        if queues == cython.NULL:
            free(slots)
            raise MemoryError
        free(self.slots)
        self.queues = cython.cast(cython.pointer(Queue), queues)
        self.slots = cython.cast(cython.pointer(u32), slots)
        self.capacity = capacity
        self.slot_mask = capacity * SLOTS_PER_QUEUE - 1
        for number in range(len(self.owners)):
            self.insert(number)

    def insert(self, number):
        """Enter a queue in the hash table."""
        queue = cython.address(self.queues[number])
        slot: cython.longlong = cython.cast(
            cython.longlong,
            hash_of(queue.topic, 0, queue.topic.size, queue.queue_id) & self.slot_mask,
        )
        while self.slots[slot]:
            slot = (slot + 1) & self.slot_mask
        self.slots[slot] = number + 1


def hash_of(view, at, end, queue_id):
    """Return FNV-1a of a topic and a queue id."""
    value: cython.uint = 2166136261
    for place in range(at, end):
        value = (value ^ cython.cast(cython.uint, read8(view, place))) * 16777619
    return (value ^ cython.cast(cython.uint, queue_id)) * cython.cast(cython.uint, 16777619)
