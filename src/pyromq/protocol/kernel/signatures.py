# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Signatures of sends and pulls: which frames may be served without the Python code.

A frame is accepted if it carries the signature of an account that the caller has added, and if a
request of that account with the same code, topic and group was allowed before (`allow`). The signed
content is that of `protocol.wire.acl`. Every other frame is for the Python code (`acl.validation`),
which decides again and says why.

Sends ask for each frame, with the header that they have read (`accepts_send`); pulls, which are
few, are checked before they are read (`run`).

The hash is OpenSSL's: the caller gives the addresses of SHA1_Init and SHA1_Update. The start of an
account's HMAC is computed once, and copied as bytes. A message is padded here, so that OpenSSL sees
whole blocks and copies nothing; the state then is the hash (FIPS 180-4), in the first words of
SHA_CTX. `acl.compiled` compares a result with Python's before it uses any of this. Signatures are
compared in constant time.

Not thread-safe.
"""

import cython
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    bytes_in,
    bytes_of,
    copy,
    faults,
    is_at,
    read8,
    read32,
    read_only,
    read_word,
    view_of,
    write8,
    write16,
    write32,
    write64,
    write_word,
)
from cython.cimports.pyromq.protocol.kernel.request_header import name_fields, read_header

from pyromq.protocol.wire import acl, frame
from pyromq.protocol.wire.codes import RequestCode

PREFIX_SIZE = frame.PREFIX_SIZE
TOTAL_SIZE = frame.TOTAL_SIZE
HEADER_LENGTH_MASK = frame.HEADER_LENGTH_MASK
MAX_FRAME = frame.MAX_FRAME
PULL = RequestCode.PULL_MESSAGE
LITE_PULL = RequestCode.LITE_PULL_MESSAGE

# The owners of the bytes of module-level views.
_names = [b"topic", b"consumerGroup"]
_access_key, _signature = acl.ACCESS_KEY.encode(), acl.SIGNATURE.encode()
assert len(_names) == FIELD_COUNT
name_fields(cython.address(NAMES), _names)
NAMES.lists_all = True
ACCESS_KEY = view_of(_access_key)
SIGNATURE = view_of(_signature)

_letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
for _number in range(64):
    BASE64[_number] = ord(_letters[_number])

#: Bytes of all values of a header, and of a body; what is larger is for the Python code.
MAX_VALUES = 1 << 16
MAX_BODY = 1 << 20
#: They, and the padding.
CONTENT_SIZE = MAX_VALUES + MAX_BODY + 2 * 64
#: Bytes of a packed request.
TEXT_SIZE = 4096
#: Allowed requests; more are forgotten, and decided by the Python code again.
MAX_ALLOWED = 100_000
#: Of one call: the caller may ask again about pulls that it does not serve.
MAX_PULLS = 32
#: Of a signature: the length of 20 bytes in Base64.
SIGNATURE_SIZE = 28


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class Account:
    """One account."""


class Signatures:
    """The accounts of a server, and what was allowed to them."""

    def __init__(self, init_hash: int, update_hash: int, max_age: int) -> None:
        """See `acl.compiled`; `max_age` is in milliseconds, 0 for any time."""
        self.init_hash = cython.cast(InitHash, cython.cast(cython.size_t, init_hash))
        self.update_hash = cython.cast(UpdateHash, cython.cast(cython.size_t, update_hash))
        self.max_age = max_age
        self.accounts = {}
        self.allowed = set()
        self.kept = [bytearray(CONTENT_SIZE), bytearray(TEXT_SIZE)]
        self.content = area_of(self.kept[0])
        self.text = area_of(self.kept[1])
        self.clear()

    # Accounts

    def clear(self) -> None:
        """Forget all accounts, and what was allowed to them."""
        self.accounts.clear()
        self.allowed.clear()
        self.last = self.allowed_account = None

    def add(self, access_key: bytes, inner: bytes, outer: bytes) -> None:
        """Add an account; `inner` and `outer` are the padded keys of its HMAC, 64 bytes each."""
        if len(inner) != BLOCK_SIZE or len(outer) != BLOCK_SIZE:
            raise ValueError("a padded key has 64 bytes")
        account = Account()
        account.key = access_key
        account.key_view = view_of(access_key)
        self.init_hash(account.inner)
        self.update_hash(account.inner, view_of(inner).data, BLOCK_SIZE)
        self.init_hash(account.outer)
        self.update_hash(account.outer, view_of(outer).data, BLOCK_SIZE)
        self.accounts[access_key] = account

    def allow(self, code: int, access_key: bytes, topic: bytes, group: bytes) -> None:
        """Let an account send requests of this code, topic and group from now on.

        The group is empty for sends.
        """
        if len(self.allowed) >= MAX_ALLOWED:
            self.allowed.clear()
        self.allowed.add(
            code.to_bytes(2, "big")
            + b"".join(len(text).to_bytes(4, "big") + text for text in (access_key, topic, group))
        )

    # Sends

    def accepts_send(self, header, topic, properties, distance, body, end):
        """Return whether a send may be served, given its header and its unescaped properties.

        `distance` is the time of the send, relative to now.
        """
        if self.max_age and (distance > self.max_age or distance < -self.max_age):
            return False
        no_group: Text
        no_group.start = no_group.end = 0
        text = read_only(header.text)
        text.size = header.text_size
        return self.accepts(
            cython.address(header.request), topic, no_group, properties, text, body, end
        )

    # Pulls

    def run(self, chunk: bytes, start: int) -> int:
        """Return the end of the accepted pulls from `start` on, at most of MAX_PULLS.

        `is_whole` tells whether they are all complete frames of the chunk.
        """
        view = view_of(chunk)
        at: cython.longlong = start
        count: cython.longlong = 0
        self.is_whole = True
        while view.size - at >= PREFIX_SIZE:
            end = at + TOTAL_SIZE + read32(view, at)
            if end > view.size and end - at <= MAX_FRAME:
                break
            count += 1
            if end - at > MAX_FRAME or count > MAX_PULLS or not self.accepts_pull(view, at, end):
                self.is_whole = False
                break
            at = end
        return at

    def accepts_pull(self, chunk, at, end):
        """Return whether one whole frame is a pull that may be served."""
        word = read32(chunk, at + TOTAL_SIZE)
        body = at + PREFIX_SIZE + (word & HEADER_LENGTH_MASK)
        encoding = word >> 24
        if body > end or encoding > 1:
            return False
        header = cython.address(self.header)
        if not read_header(
            header, cython.address(NAMES), chunk, at + PREFIX_SIZE, body, encoding == 1
        ):
            return False
        if header.code != PULL and header.code != LITE_PULL:
            return False
        nothing: Text
        nothing.start = nothing.end = -1
        return self.accepts(
            header, header.fields[TOPIC], header.fields[GROUP], nothing, chunk, body, end
        )

    # Both

    def accepts(self, header, topic, group, properties, text, body, end):
        """Return whether a frame is signed, and allowed to its account.

        `text` is the value of the field at `properties` without its escapes.
        """
        if end - body > MAX_BODY:
            return False
        if not self.sort(header) or self.access_key_at < 0 or self.signature_at < 0:
            return False
        chunk = header.chunk
        key = header.all_values[self.order[self.access_key_at]]
        if not self.find_account(chunk, key) or not self.is_allowed(
            chunk, header.code, key, topic, group
        ):
            return False
        size = self.gather(header, properties, text)
        if size < 0:
            return False
        size = copy(self.content, size, chunk, body, end - body)
        return self.is_signed(chunk, header.all_values[self.order[self.signature_at]], size)

    # The order of the fields

    def sort(self, header):
        """Order the fields by their names; return False if one occurs twice."""
        count = header.all_count
        # Clients send the same fields in the same order every time.
        if count == self.order_size and self.is_sorted(header):
            if (
                self.access_key_at >= 0
                and self.signature_at >= 0
                and has_name(header, self.order[self.access_key_at], ACCESS_KEY)
                and has_name(header, self.order[self.signature_at], SIGNATURE)
            ):
                return True
        else:
            for number in range(count):
                place = number
                name = header.all_names[number]
                while (
                    place > 0
                    and compare(header.chunk, header.all_names[self.order[place - 1]], name) > 0
                ):
                    self.order[place] = self.order[place - 1]
                    place -= 1
                self.order[place] = number
            self.order_size = count
        self.access_key_at = self.place_of(header, ACCESS_KEY)
        self.signature_at = self.place_of(header, SIGNATURE)
        return self.is_sorted(header)

    def is_sorted(self, header):
        """Return whether the order of the last frame fits, and no name occurs twice."""
        for place in range(1, self.order_size):
            if (
                compare(
                    header.chunk,
                    header.all_names[self.order[place - 1]],
                    header.all_names[self.order[place]],
                )
                >= 0
            ):
                return False
        return True

    def place_of(self, header, name):
        """Return where a field is in the order, or -1."""
        for place in range(self.order_size):
            if has_name(header, self.order[place], name):
                return place
        return -1

    # The account

    def find_account(self, chunk, key):
        """Find the account of a key; return False if it is unknown."""
        last = self.last
        if (
            last is not None
            and key.end - key.start == last.key_view.size
            and is_at(chunk, key.start, key.end, last.key_view)
        ):
            return True
        self.last = self.accounts.get(bytes_in(chunk, key.start, key.end))
        return self.last is not None

    def is_allowed(self, chunk, code, key, topic, group):
        """Return whether the account was allowed this code with this topic and group."""
        if (
            self.allowed_account is self.last
            and code == self.allowed_code
            and is_same(chunk, topic, self.allowed_topic)
            and is_same(chunk, group, self.allowed_group)
        ):
            return True
        if code < 0 or code > 0xFFFF:
            return False
        at = write16(self.text, 0, code)
        at = self.pack(chunk, at, key)
        at = self.pack(chunk, at, topic)
        at = self.pack(chunk, at, group)
        if at < 0:
            return False
        packed = bytes_of(self.text, 0, at)
        if packed not in self.allowed:
            return False
        self.allowed_account = self.last
        self.allowed_code = code
        self.allowed_request = packed
        view = view_of(packed)
        self.allowed_group.data = view.data + view.size - (group.end - group.start)
        self.allowed_group.size = group.end - group.start
        self.allowed_topic.data = self.allowed_group.data - 4 - (topic.end - topic.start)
        self.allowed_topic.size = topic.end - topic.start
        return True

    def pack(self, chunk, at, field):
        """Write a field and its length; return the end, or -1 without a field or room."""
        size = field.end - field.start
        if at < 0 or field.start < 0 or size > self.text.size - at - 4:
            return -1
        at = write32(self.text, at, size)
        return copy(self.text, at, chunk, field.start, size)

    # The content

    def gather(self, header, properties, text):
        """Copy all values but the signature, ordered by name; return their size, or -1."""
        at: cython.longlong = 0
        for place in range(self.order_size):
            if place == self.signature_at:
                continue
            value = header.all_values[self.order[place]]
            size = value.end - value.start
            # Text is never longer without its escapes.
            if size > MAX_VALUES - at:
                return -1
            if value.start == properties.start:
                at = copy(self.content, at, text, 0, text.size)
            elif size <= 16 and value.start + 16 <= header.chunk.size:
                # Most values are short: two words cost less than a call of memcpy.
                write_word(self.content, at, read_word(header.chunk, value.start))
                write_word(self.content, at + 8, read_word(header.chunk, value.start + 8))
                at += size
            else:
                at = copy(self.content, at, header.chunk, value.start, size)
        return at

    def is_signed(self, chunk, given, size):
        """Return whether a signature is that of the content, of this size."""
        if given.end - given.start != SIGNATURE_SIZE:
            return False
        state: cython.uchar[128]
        # The message begins with the block of the inner key, which the state has seen.
        blocks = self.pad(size, size + BLOCK_SIZE)
        memcpy(state, self.last.inner, STATE_SIZE)
        self.update_hash(state, self.content.data, cython.cast(cython.size_t, blocks * BLOCK_SIZE))
        self.write_digest(state)
        self.pad(DIGEST_SIZE, DIGEST_SIZE + BLOCK_SIZE)
        memcpy(state, self.last.outer, STATE_SIZE)
        self.update_hash(state, self.content.data, BLOCK_SIZE)
        self.write_digest(state)
        self.content.data[DIGEST_SIZE] = 0
        digest = self.content.data
        # 27 letters and one `=`: each three bytes are four letters.
        difference: cython.longlong = read8(chunk, given.end - 1) ^ 0x3D
        for group in range(7):
            bits: cython.longlong = (
                digest[group * 3] << 16 | digest[group * 3 + 1] << 8 | digest[group * 3 + 2]
            )
            place = given.start + group * 4
            difference |= read8(chunk, place) ^ BASE64[bits >> 18 & 63]
            difference |= read8(chunk, place + 1) ^ BASE64[bits >> 12 & 63]
            difference |= read8(chunk, place + 2) ^ BASE64[bits >> 6 & 63]
            if group < 6:
                difference |= read8(chunk, place + 3) ^ BASE64[bits & 63]
        return difference == 0

    def pad(self, size, total):
        """Pad the content of `size` bytes, the end of a message of `total`; return its blocks."""
        blocks = (size + 1 + 8 + BLOCK_SIZE - 1) // BLOCK_SIZE
        end = blocks * BLOCK_SIZE
        write8(self.content, size, 0x80)
        memset(self.content.data + size + 1, 0, cython.cast(cython.size_t, end - size - 9))
        write64(self.content, end - 8, total * 8)
        return blocks

    def write_digest(self, state):
        """Write the hash of a state to the content."""
        words = cython.cast(cython.pointer(cython.uint), state)
        at: cython.longlong = 0
        for number in range(DIGEST_SIZE // 4):
            at = write32(self.content, at, words[number])


def compare(chunk, left, right):
    """Return a number below, at or above 0, as the first name is before, equal to, or after."""
    left_size, right_size = left.end - left.start, right.end - right.start
    if left_size == 0 or right_size == 0:
        return left_size - right_size
    # Most names differ in their first letter.
    difference = read8(chunk, left.start) - read8(chunk, right.start)
    if difference:
        return difference
    difference = memcmp(
        chunk.data + left.start,
        chunk.data + right.start,
        cython.cast(cython.size_t, min(left_size, right_size)),
    )
    return difference if difference else left_size - right_size


def is_same(chunk, field, text):
    """Return whether a field has this text."""
    return field.end - field.start == text.size and is_at(chunk, field.start, field.end, text)


def has_name(header, number, name):
    """Return whether a field has this name."""
    return is_same(header.chunk, header.all_names[number], name)
