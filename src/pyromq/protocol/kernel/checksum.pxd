# CRC-32, inlined into the modules of the kernel: as fast as `isal`, without its cost per call.
#
# Sixteen bytes at a time: by carry-less multiplication where the processor has it and the data is
# long enough, else by sixteen table lookups, at a fifth of the speed.

from pyromq.protocol.kernel.raw cimport View, i64, u32, u64, u8, is_outside, read8, read_word

cdef extern from *:
    """
    #include <stddef.h>

    static unsigned int pyromq_crc[16][256];
    /* Whether the processor multiplies without carries. */
    static int pyromq_has_clmul = 0;

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>

    #define PYROMQ_CLMUL __attribute__((target("pclmul,sse4.1")))

    /* Move 128 bits ahead by the distance that the two factors stand for, and add `next`. */
    PYROMQ_CLMUL static inline __m128i pyromq_fold(__m128i value, __m128i factors, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(value, factors, 0x00);
        __m128i high = _mm_clmulepi64_si128(value, factors, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* Continue a CRC (complemented) with at least 64 bytes, a multiple of 16. From Intel's paper
       "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction": the factors are
       powers of x modulo the polynomial, with reversed bits. */
    PYROMQ_CLMUL static unsigned int pyromq_crc_folded(
            unsigned int crc, const unsigned char *data, size_t size) {
        const __m128i by_64_bytes = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4);
        const __m128i by_16_bytes = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
        const __m128i by_8_bytes = _mm_set_epi64x(0, 0x0163CD6124);
        const __m128i polynomial = _mm_set_epi64x(0x01F7011641, 0x01DB710641);
        const __m128i low_word = _mm_set_epi32(0, 0, 0, -1);
        const __m128i *next = (const __m128i *) data;
        __m128i a = _mm_xor_si128(_mm_loadu_si128(next), _mm_cvtsi32_si128((int) crc));
        __m128i b = _mm_loadu_si128(next + 1);
        __m128i c = _mm_loadu_si128(next + 2);
        __m128i d = _mm_loadu_si128(next + 3);
        for (next += 4, size -= 64; size >= 64; next += 4, size -= 64) {
            a = pyromq_fold(a, by_64_bytes, _mm_loadu_si128(next));
            b = pyromq_fold(b, by_64_bytes, _mm_loadu_si128(next + 1));
            c = pyromq_fold(c, by_64_bytes, _mm_loadu_si128(next + 2));
            d = pyromq_fold(d, by_64_bytes, _mm_loadu_si128(next + 3));
        }
        a = pyromq_fold(a, by_16_bytes, b);
        a = pyromq_fold(a, by_16_bytes, c);
        a = pyromq_fold(a, by_16_bytes, d);
        for (; size >= 16; next++, size -= 16)
            a = pyromq_fold(a, by_16_bytes, _mm_loadu_si128(next));
        /* 128 bits to 64, and these to 32 by Barrett reduction. */
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16_bytes, 0x10));
        b = _mm_clmulepi64_si128(_mm_and_si128(a, low_word), by_8_bytes, 0x00);
        a = _mm_xor_si128(_mm_srli_si128(a, 4), b);
        b = _mm_clmulepi64_si128(_mm_and_si128(a, low_word), polynomial, 0x10);
        b = _mm_clmulepi64_si128(_mm_and_si128(b, low_word), polynomial, 0x00);
        return (unsigned int) _mm_extract_epi32(_mm_xor_si128(a, b), 1);
    }

    static void pyromq_find_clmul(void) {
        __builtin_cpu_init();
        pyromq_has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    static unsigned int pyromq_crc_folded(
            unsigned int crc, const unsigned char *data, size_t size) {
        (void) data, (void) size;
        return crc;
    }
    static void pyromq_find_clmul(void) {}
    #endif

    static void pyromq_fill_crc(void) {
        for (int byte = 0; byte < 256; byte++) {
            unsigned int crc = (unsigned int) byte;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
            pyromq_crc[0][byte] = crc;
        }
        for (int slice = 1; slice < 16; slice++)
            for (int byte = 0; byte < 256; byte++) {
                unsigned int crc = pyromq_crc[slice - 1][byte];
                pyromq_crc[slice][byte] = crc >> 8 ^ pyromq_crc[0][crc & 0xFF];
            }
        pyromq_find_clmul();
    }
    """
    # Call it at import.
    void fill_crc_tables "pyromq_fill_crc" ()
    u32 CRC_TABLES "pyromq_crc" [16][256]
    bint has_clmul "pyromq_has_clmul"
    u32 crc_folded "pyromq_crc_folded" (u32 crc, const u8* data, size_t size) nogil

cdef enum:
    # Fewer bytes are left to the tables.
    MIN_FOLDED = 64


cdef inline i64 crc32(View view, i64 at, i64 size) noexcept nogil:
    cdef u32 crc = ~(<u32> 0)
    cdef u64 low, high
    cdef i64 end = at + size
    cdef i64 folded = size & -16
    cdef int i
    if has_clmul and size >= MIN_FOLDED and not is_outside(view.size, at, folded):
        crc = crc_folded(crc, view.data + at, <size_t> folded)
        at += folded
    while end - at >= 16:
        low = read_word(view, at) ^ crc
        high = read_word(view, at + 8)
        crc = 0
        for i in range(8):
            crc ^= CRC_TABLES[15 - i][(low >> (8 * i)) & 0xFF]
            crc ^= CRC_TABLES[7 - i][(high >> (8 * i)) & 0xFF]
        at += 16
    while at < end:
        crc = crc >> 8 ^ CRC_TABLES[0][(crc ^ <u32> read8(view, at)) & 0xFF]
        at += 1
    return <i64> <u32> ~crc
