// Products of few rows with large matrices, and a whole forward pass of a decoder, at the speed of the memory.
//
// Belongs here: arithmetic on plain pointers. Does not belong here: torch, and which tensors are passed when (`native.py`).
// `build.py` compiles this for the machine it runs on; without AVX-512 sixteen lanes are two registers of eight.
//
// The rule of this file: **the result of a row depends on that row alone.** The sum of an output runs over the columns in
// one order, in sixteen lanes that are added in one order at the end; other rows, other outputs and threads do not change
// it. Attention runs over the keys that a query sees, in the order in which they lie, and over no others. So the logits of
// a token are the same bits in a batch of one or eight, fed alone or in a tree of sixty.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include <omp.h>
#include <sched.h>

#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define HAS_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__)
#define HAS_AVX2 1
#endif

namespace {

constexpr int LANES = 16;
constexpr int OUTPUTS = 4;  // outputs of a tile, whose lanes are added together

typedef float Four __attribute__((vector_size(16)));
typedef uint16_t bfloat16;
#ifdef HAS_AVX512
typedef float Lanes __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef int8_t Bytes __attribute__((vector_size(16)));

typedef Lanes Register;
constexpr int REGISTERS = 1, MOST_QUERIES = 4;
constexpr int OUTPUTS_AT_ONCE = OUTPUTS, CHAINS_AT_ONCE = 4;  // 24 sums fit the registers beside what is added
inline Register& part(Lanes& lanes, int) { return lanes; }

template <typename Mask, typename Numbers>
inline Numbers select(Mask where, Numbers yes, Numbers no) { return where ? yes : no; }
inline Lanes converted(Integers whole) { return __builtin_convertvector(whole, Lanes); }
#else
// Sixteen numbers in two registers. Compilers would keep vectors that are wider than a register in memory.
template <typename Number>
struct Sixteen {
    typedef Number Eight __attribute__((vector_size(8 * sizeof(Number))));
    Eight half[2];
    Sixteen() = default;
    Sixteen(Number value) : half{Eight{} + value, Eight{} + value} {}
    Sixteen(Eight low, Eight high) : half{low, high} {}
    template <typename Other>
    explicit operator Sixteen<Other>() const {  // the same bits
        typedef typename Sixteen<Other>::Eight To;
        return {(To)half[0], (To)half[1]};
    }
    Number operator[](int lane) const { return half[lane / 8][lane % 8]; }
#define BY_HALVES(op, Result) \
    friend Sixteen<Result> operator op(Sixteen a, Sixteen b) { return {a.half[0] op b.half[0], a.half[1] op b.half[1]}; }
    BY_HALVES(+, Number) BY_HALVES(-, Number) BY_HALVES(*, Number) BY_HALVES(/, Number)
    BY_HALVES(&, Number) BY_HALVES(|, Number) BY_HALVES(<<, Number) BY_HALVES(>>, Number)
    BY_HALVES(<, int32_t) BY_HALVES(>, int32_t)
    Sixteen operator-() const { return {-half[0], -half[1]}; }
    Sixteen operator~() const { return {~half[0], ~half[1]}; }
    Sixteen& operator+=(Sixteen other) { return *this = *this + other; }
};
typedef Sixteen<float> Lanes;
typedef Sixteen<uint32_t> Bits;
typedef Sixteen<int32_t> Integers;

typedef Lanes::Eight Register;
constexpr int REGISTERS = 2, MOST_QUERIES = 3;
constexpr int OUTPUTS_AT_ONCE = 2, CHAINS_AT_ONCE = 1;  // 12 registers of sums fit beside what is added
inline Register& part(Lanes& lanes, int which) { return lanes.half[which]; }

template <typename Numbers>
inline Numbers select(Integers where, Numbers yes, Numbers no) {
    return {where.half[0] ? yes.half[0] : no.half[0], where.half[1] ? yes.half[1] : no.half[1]};
}
inline Lanes converted(Integers whole) {
    return {__builtin_convertvector(whole.half[0], Register), __builtin_convertvector(whole.half[1], Register)};
}
#endif

// INT8_ROWS: INT8 weights, with input rows that are rounded to bytes, too. INT4: `Nibbles`.
enum Kind : int64_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT8_ROWS = 3, INT4 = 4 };

constexpr int64_t NIBBLES = 64;

// 64 neighbouring weights of a row as steps of one scale; 8 is subtracted from each four-bit number. The lower halves of
// the bytes are the first half of the weights, the upper halves the second.
struct Nibbles {
    float scale;
    uint8_t pairs[NIBBLES / 2];
};

template <typename Weight>
constexpr int64_t COLUMNS_IN = 1;  // one element of an array of weights
template <>
constexpr int64_t COLUMNS_IN<Nibbles> = NIBBLES;

// Bytes of `count` weights of a matrix.
inline int64_t bytes_of_weights(int64_t kind, int64_t count) {
    if (kind == INT4) return count / NIBBLES * sizeof(Nibbles);
    return count * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1);
}

// --- numbers -----------------------------------------------------------------------------------------------------------

inline Register multiply_add(Register a, Register b, Register c) {
#if defined(HAS_AVX512)
    return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(HAS_AVX2)
    return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

#ifndef HAS_AVX512
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return {multiply_add(a.half[0], b.half[0], c.half[0]), multiply_add(a.half[1], b.half[1], c.half[1])};
}
#endif

// Keeps a value in a register: compilers would read it from memory again for every sum that it enters.
inline Register held(Register numbers) {
#if defined(HAS_AVX512) || defined(HAS_AVX2)
    asm("" : "+v"(numbers));
#endif
    return numbers;
}

inline float widen(bfloat16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline bfloat16 narrow(float value) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (bfloat16)(bits >> 16 | 0x40);
    return (bfloat16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#ifdef HAS_AVX512
inline Lanes load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, 64);
    return lanes;
}

inline Lanes load(const bfloat16* from) {
    return (Lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
}

inline Lanes load(const int8_t* from) {
    return (Lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
}

template <typename Number>
inline Register load_part(const Number* from, int) { return load(from); }
#else
inline Register load_half(const float* from) {
    Register numbers;
    std::memcpy(&numbers, from, 32);
    return numbers;
}

inline Register load_half(const bfloat16* from) {
#ifdef HAS_AVX2
    return (Register)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#else
    Bits::Eight bits;
    for (int i = 0; i < 8; i++) bits[i] = (uint32_t)from[i] << 16;
    return (Register)bits;
#endif
}

inline Register load_half(const int8_t* from) {
#ifdef HAS_AVX2
    return (Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    Register numbers;
    for (int i = 0; i < 8; i++) numbers[i] = from[i];
    return numbers;
#endif
}

template <typename Number>
inline Register load_part(const Number* from, int which) { return load_half(from + 8 * which); }

template <typename Number>
inline Lanes load(const Number* from) { return {load_half(from), load_half(from + 8)}; }
#endif

#if defined(HAS_AVX512) && defined(__AVX512BF16__)
// 32 bytes as bfloat16, which represents every byte exactly.
inline __m512i load_narrow(const bfloat16* from) { return _mm512_loadu_si512(from); }

inline __m512i load_narrow(const int8_t* from) {
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)load(from + LANES), (__m512)load(from));
}
#endif

// The first `count` of sixteen numbers; the others are zero.
#ifdef HAS_AVX512
inline Lanes load_some(const float* from, int64_t count) {
    return (Lanes)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
}

inline Lanes load_some(const bfloat16* from, int64_t count) {
    __m256i halves = _mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), from);
    return (Lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

inline Lanes load_some(const int8_t* from, int64_t count) {
    return (Lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8((__mmask16)((1u << count) - 1), from)));
}
#else
template <typename Number>
inline Lanes load_some(const Number* from, int64_t count) {
    Number whole[LANES] = {};
    std::memcpy(whole, from, count * sizeof(Number));
    return load(whole);
}
#endif

inline void store(float* to, Lanes lanes) { std::memcpy(to, &lanes, 64); }

inline void store(bfloat16* to, Lanes lanes) {
#if defined(HAS_AVX512) && defined(__AVX512BF16__)
    __m256bh halves = _mm512_cvtneps_pbh((__m512)lanes);
    std::memcpy(to, &halves, 32);
#else
    Bits bits = (Bits)lanes, odd = bits >> 16 & 1;
    Bits is_nan = (Bits)((bits & 0x7fffffff) > 0x7f800000);
    bits = ((bits + 0x7fff + odd) & ~is_nan) | ((bits | 0x400000) & is_nan);
#if defined(HAS_AVX512)
    Halves halves = __builtin_convertvector(bits >> 16, Halves);
    std::memcpy(to, &halves, 32);
#elif defined(HAS_AVX2)
    __m256i mixed = _mm256_packus_epi32((__m256i)(bits.half[0] >> 16), (__m256i)(bits.half[1] >> 16));
    _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(mixed, 0xd8));
#else
    for (int i = 0; i < LANES; i++) to[i] = (bfloat16)(bits[i] >> 16);
#endif
#endif
}

template <typename Number>
inline void store_some(Number* to, Lanes lanes, int64_t count) {
    Number whole[LANES];
    store(whole, lanes);
    std::memcpy(to, whole, count * sizeof(Number));
}

// Calls take(first, load, store) for `count` numbers, sixteen at a time; the last sixteen are padded with zeros.
template <typename Take>
inline void sweep(int64_t count, Take take) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        take(i, [](const auto* from) { return load(from); }, [](auto* to, Lanes lanes) { store(to, lanes); });
    if (int64_t rest = count - i)
        take(i, [rest](const auto* from) { return load_some(from, rest); },
             [rest](auto* to, Lanes lanes) { store_some(to, lanes, rest); });
}

inline Lanes rounded(Lanes lanes) {  // to bfloat16
    bfloat16 halves[LANES];
    store(halves, lanes);
    return load(halves);
}

inline Lanes all(float value) {
#ifdef HAS_AVX512
    return (Lanes)_mm512_set1_ps(value);
#else
    return value;
#endif
}

// The lane sums of four vectors, in one order: each quarter is transposed four by four and added up; then the first
// quarter is added to the third, the second to the fourth, and the two results to each other.
#ifdef HAS_AVX512
inline Lanes quarters(const Lanes* four) {
    const Integers low = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
    const Integers high = {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
    const Integers first = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const Integers second = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
    Lanes ab = __builtin_shuffle(four[0], four[1], low) + __builtin_shuffle(four[0], four[1], high);
    Lanes cd = __builtin_shuffle(four[2], four[3], low) + __builtin_shuffle(four[2], four[3], high);
    return __builtin_shuffle(ab, cd, first) + __builtin_shuffle(ab, cd, second);
}

inline Four sums(const Lanes* four) {
    Lanes abcd = quarters(four);
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)abcd), _mm512_extractf32x8_ps((__m512)abcd, 1));
    return (Four)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// The same for four rows at once: each quarter holds the four sums of a row.
inline Lanes sums_of_rows(Lanes a, Lanes b, Lanes c, Lanes d) {
    const Integers front = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const Integers even = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    Lanes ab = __builtin_shuffle(a, b, front) + __builtin_shuffle(a, b, front + 8);
    Lanes cd = __builtin_shuffle(c, d, front) + __builtin_shuffle(c, d, front + 8);
    return __builtin_shuffle(ab, cd, even) + __builtin_shuffle(ab, cd, even + 4);
}

#else
inline Lanes quarters(const Lanes* four) {
    const Integers::Eight low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
    const Integers::Eight first = {0, 1, 8, 9, 4, 5, 12, 13}, second = {2, 3, 10, 11, 6, 7, 14, 15};
    auto of = [&](int half) {
        Register a = four[0].half[half], b = four[1].half[half], c = four[2].half[half], d = four[3].half[half];
        Register ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
        Register cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
        return __builtin_shuffle(ab, cd, first) + __builtin_shuffle(ab, cd, second);
    };
    return {of(0), of(1)};
}

inline Four ends_added(Lanes abcd) {
    Register both = abcd.half[0] + abcd.half[1];
    Four parts[2];
    std::memcpy(parts, &both, 32);
    return parts[0] + parts[1];
}

inline Four sums(const Lanes* four) { return ends_added(quarters(four)); }

inline Lanes sums_of_rows(Lanes a, Lanes b, Lanes c, Lanes d) {
    Four rows[4] = {ends_added(a), ends_added(b), ends_added(c), ends_added(d)};
    Lanes result;
    std::memcpy(&result, rows, 64);
    return result;
}
#endif

inline float sum(Lanes lanes) {
    Lanes four[4] = {lanes, Lanes{}, Lanes{}, Lanes{}};
    return sums(four)[0];
}

// e to the power of x, to two units in the last place, for x up to 88; 0 for x below -87.
inline Lanes exponential(Lanes x) {
    Bits tiny = (Bits)(x < all(-87.0f));
    x = (Lanes)(((Bits)x & ~tiny) | ((Bits)all(-87.0f) & tiny));
    Lanes magic = all(12582912.0f);  // 1.5 * 2 ** 23: adding it rounds to an integer
    Lanes shifted = multiply_add(x, all(1.44269504088896341f), magic);
    Lanes whole = shifted - magic;
    Lanes rest = multiply_add(whole, all(-0.693145751953125f), x);
    rest = multiply_add(whole, all(-1.42860682030941723e-6f), rest);
    Lanes series = all(1.0f / 5040);
    for (float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        series = multiply_add(series, rest, all(factor));
    Bits power = ((Bits)shifted - (Bits)magic) << 23;
    return (Lanes)(((Bits)series + power) & ~tiny);
}

inline void store(float* to, Four four, int64_t count) {
    if (count == OUTPUTS) std::memcpy(to, &four, 16);
    else for (int o = 0; o < count; o++) to[o] = four[o];
}

// --- products ----------------------------------------------------------------------------------------------------------

struct Matrix {
    const void* weight;  // [outputs, columns], row after row
    const float* scale;  // [outputs] of INT8 and INT8_ROWS, else null
    const float* bias;   // [outputs] or null
    int64_t kind, outputs, columns;
};

#define UNROLLED _Pragma("GCC unroll 8")  // without unrolling, the sums of a loop lie in memory and not in registers

typedef int8_t ByteRegister __attribute__((vector_size(sizeof(Register))));
typedef int32_t IntegerRegister __attribute__((vector_size(sizeof(Register))));

// Register `which` of 64 bytes, of which the first `count` exist; the others are zero.
inline ByteRegister load_bytes(const int8_t* from, int64_t count, int which) {
#ifdef HAS_AVX512
    return (ByteRegister)_mm512_maskz_loadu_epi8(~(__mmask64)0 >> (4 * LANES - count), from);
#else
    ByteRegister bytes = {};
    int64_t here = count - 32 * which;
    if (here >= 32) std::memcpy(&bytes, from + 32 * which, 32);
    else if (here > 0) std::memcpy(&bytes, from + 32 * which, here);
    return bytes;
#endif
}

// Adds products of bytes with bytes to as many sums as lanes, four neighbours each. `SHIFTED`: 128 has been added to `weights`.
#if defined(HAS_AVX512) && defined(__AVX512VNNI__)
constexpr bool SHIFTED = true;
inline ByteRegister weights_of_bytes(ByteRegister weights) {
    return (ByteRegister)_mm512_xor_si512((__m512i)weights, _mm512_set1_epi8(-128));
}
inline IntegerRegister add_bytes(IntegerRegister sums, ByteRegister weights, ByteRegister own) {
    return (IntegerRegister)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)own);
}
#else
constexpr bool SHIFTED = false;
inline ByteRegister weights_of_bytes(ByteRegister weights) { return weights; }
inline IntegerRegister add_bytes(IntegerRegister sums, ByteRegister weights, ByteRegister own) {
#ifdef HAS_AVX2  // two products fit 16 bits, since bytes of rows are -127 to 127
    __m256i sign = _mm256_sign_epi8((__m256i)own, (__m256i)weights);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)weights), sign);
    return sums + (IntegerRegister)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int i = 0; i < (int)sizeof(Register); i++) sums[i / 4] += weights[i] * own[i];
    return sums;
#endif
}
#endif

// As `float_sums` below, for rows in bytes: `base` [ROWS] is added to every lane, and the sums are exact.
template <int ROWS, int COUNT, int PARTS>
inline void byte_sums(int at, const int8_t* const* line, const int8_t* const* soon, const int8_t* rows, int64_t stride,
                      int64_t columns, const int32_t* base, const Lanes* before, Lanes* result) {
    IntegerRegister total[ROWS][COUNT][PARTS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int o = 0; o < COUNT; o++)
            UNROLLED for (int p = 0; p < PARTS; p++) {
                Lanes own = before ? before[r * OUTPUTS + o] : Lanes{};
                total[r][o][p] = before ? (IntegerRegister)part(own, at + p) : IntegerRegister{} + base[r];
            }
    for (int64_t column = 0; column < columns; column += 4 * LANES) {
        int64_t count = std::min<int64_t>(columns - column, 4 * LANES);
        UNROLLED for (int o = 0; o < COUNT && !at; o++) __builtin_prefetch(soon[o] + column);
        UNROLLED for (int p = 0; p < PARTS; p++) {
            ByteRegister weights[COUNT];
            UNROLLED for (int o = 0; o < COUNT; o++)
                weights[o] = weights_of_bytes(load_bytes(line[o] + column, count, at + p));
            UNROLLED for (int r = 0; r < ROWS; r++) {
                ByteRegister own = (ByteRegister)held((Register)load_bytes(rows + r * stride + column, count, at + p));
                UNROLLED for (int o = 0; o < COUNT; o++) total[r][o][p] = add_bytes(total[r][o][p], weights[o], own);
            }
        }
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int o = 0; o < COUNT; o++)
            UNROLLED for (int p = 0; p < PARTS; p++) part(result[r * OUTPUTS + o], at + p) = (Register)total[r][o][p];
}

// The `part`th sixteen of 64 four-bit weights, before their scale: -8 to 7.
inline Lanes load_steps(const Nibbles& from, int part) {
    const uint8_t* pairs = from.pairs + part % 2 * LANES;
#ifdef HAS_AVX512
    __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)pairs));  // the lookup reads the lowest four bits
    const __m512 steps = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return (Lanes)_mm512_permutexvar_ps(part < 2 ? both : _mm512_srli_epi32(both, 4), steps);
#elif defined(HAS_AVX2)
    __m128i both = _mm_loadu_si128((const __m128i*)pairs), four = _mm_set1_epi8(15);
    __m128i steps = _mm_and_si128(part < 2 ? both : _mm_srli_epi16(both, 4), four);
    steps = _mm_sub_epi8(steps, _mm_set1_epi8(8));
    auto half = [](__m128i bytes) { return (Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); };
    return {half(steps), half(_mm_srli_si128(steps, 8))};
#else
    int8_t steps[LANES];
    for (int i = 0; i < LANES; i++) steps[i] = (int8_t)((pairs[i] >> (part < 2 ? 0 : 4) & 15) - 8);
    return load(steps);
#endif
}

// As `tile` below, for weights in four bits: the sum over each 64 columns is multiplied by their scale.
template <typename Number, int ROWS>
inline void nibble_sums(const Nibbles* const* line, const Nibbles* const* soon, const Number* rows, int64_t stride,
                        int64_t columns, const Lanes* before, Lanes (*result)[OUTPUTS]) {
    Lanes total[ROWS][OUTPUTS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int o = 0; o < OUTPUTS; o++) total[r][o] = before ? before[r * OUTPUTS + o] : Lanes{};
    for (int64_t block = 0; block < columns / NIBBLES; block++) {
        const Number* own = rows + block * NIBBLES;
        UNROLLED for (int o = 0; o < OUTPUTS; o++) {
            const Nibbles& weights = line[o][block];
            __builtin_prefetch(soon[o] + block);
            Lanes scale = all(weights.scale);
#if defined(HAS_AVX512) && defined(__AVX512BF16__)
            if constexpr (sizeof(Number) == 2) {
                // Every step as bfloat16, twice, since a lookup in 32 entries reads one bit too many.
                const __m256i half = _mm256_setr_epi16(0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0,
                                                       0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
                const __m512i steps = _mm512_broadcast_i64x4(half);
                __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)weights.pairs));
                __m512i low = _mm512_permutexvar_epi16(both, steps);
                __m512i high = _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), steps);
                UNROLLED for (int r = 0; r < ROWS; r++) {
                    const Number* row = own + r * stride;
                    __m512 sum = _mm512_setzero_ps();
                    sum = _mm512_dpbf16_ps(sum, (__m512bh)low, (__m512bh)_mm512_loadu_si512(row));
                    sum = _mm512_dpbf16_ps(sum, (__m512bh)high, (__m512bh)_mm512_loadu_si512(row + NIBBLES / 2));
                    total[r][o] = multiply_add((Lanes)sum, scale, total[r][o]);
                }
                continue;
            }
#endif
            Lanes steps[NIBBLES / LANES];
            UNROLLED for (int part = 0; part < NIBBLES / LANES; part++) steps[part] = load_steps(weights, part);
            UNROLLED for (int r = 0; r < ROWS; r++) {
                Lanes sum = {};
                UNROLLED for (int part = 0; part < NIBBLES / LANES; part++)
                    sum = multiply_add(steps[part], load(own + r * stride + part * LANES), sum);
                total[r][o] = multiply_add(sum, scale, total[r][o]);
            }
        }
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int o = 0; o < OUTPUTS; o++) result[r][o] = total[r][o];
}

// Sums of `COUNT` outputs, a part of a tile's, in `PARTS` registers of the lanes from `at` on, for floating-point rows.
// `before`, `result`: [ROWS, OUTPUTS].
template <typename Weight, typename Number, int ROWS, int COUNT, int PARTS>
inline void float_sums(int at, const Weight* const* line, const Weight* const* soon, const Number* rows, int64_t stride,
                       int64_t columns, const Lanes* before, Lanes* result) {
    Register total[ROWS][COUNT][PARTS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int o = 0; o < COUNT; o++)
            UNROLLED for (int p = 0; p < PARTS; p++) {
                Lanes own = before ? before[r * OUTPUTS + o] : Lanes{};
                total[r][o][p] = part(own, at + p);
            }
    int64_t column = 0;
#if defined(HAS_AVX512) && defined(__AVX512BF16__)
    if constexpr (sizeof(Number) == 2) {
        for (; column + 32 <= columns; column += 32) {
            __m512i weights[COUNT];
            UNROLLED for (int o = 0; o < COUNT; o++) {
                weights[o] = load_narrow(line[o] + column);
                __builtin_prefetch(soon[o] + column);
            }
            UNROLLED for (int r = 0; r < ROWS; r++) {
                __m512i own = (__m512i)held((Lanes)_mm512_loadu_si512(rows + r * stride + column));
                UNROLLED for (int o = 0; o < COUNT; o++)
                    total[r][o][0] = (Lanes)_mm512_dpbf16_ps((__m512)total[r][o][0], (__m512bh)weights[o], (__m512bh)own);
            }
        }
    }
#endif
    for (; column + LANES <= columns; column += LANES)
        UNROLLED for (int p = 0; p < PARTS; p++) {
            Register weights[COUNT];
            UNROLLED for (int o = 0; o < COUNT; o++) {
                weights[o] = held(load_part(line[o] + column, at + p));
                if (at + p == 0) __builtin_prefetch(soon[o] + column);
            }
            UNROLLED for (int r = 0; r < ROWS; r++) {
                Register own = held(load_part(rows + r * stride + column, at + p));
                UNROLLED for (int o = 0; o < COUNT; o++) total[r][o][p] = multiply_add(weights[o], own, total[r][o][p]);
            }
        }
    if (int64_t rest = columns - column)
        UNROLLED for (int r = 0; r < ROWS; r++) {
            Lanes own = load_some(rows + r * stride + column, rest);
            UNROLLED for (int o = 0; o < COUNT; o++) {
                Lanes weight = load_some(line[o] + column, rest);
                UNROLLED for (int p = 0; p < PARTS; p++)
                    total[r][o][p] = multiply_add(part(weight, at + p), part(own, at + p), total[r][o][p]);
            }
        }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int o = 0; o < COUNT; o++)
            UNROLLED for (int p = 0; p < PARTS; p++) part(result[r * OUTPUTS + o], at + p) = total[r][o][p];
}

// Sums of `OUTPUTS` outputs (the last `OUTPUTS - count` of a narrower tile mean nothing) for `ROWS` rows over `columns`
// columns of `stride`. `base`: see `byte_sums`. `next`: weights to be prefetched. `before`: sums of the columns before
// these, or null. `after`: where to store the sums for the columns that follow; null: store them in `result`.
template <typename Weight, typename Number, int ROWS>
inline void tile(const Weight* weight, int64_t count, const Number* rows, int64_t stride, int64_t columns,
                 const int32_t* base, const Weight* const* next, const Lanes* before, Lanes* after, Four* result) {
    constexpr bool IN_BYTES = std::is_same_v<Number, int8_t>;
    Lanes total[ROWS][OUTPUTS];
    const Weight *line[OUTPUTS], *soon[OUTPUTS];
    UNROLLED for (int o = 0; o < OUTPUTS; o++) {
        line[o] = weight + std::min<int64_t>(o, count - 1) * (stride / COLUMNS_IN<Weight>);
        soon[o] = next[o];
    }
    constexpr int COUNT = ROWS == 1 ? OUTPUTS : OUTPUTS_AT_ONCE, PARTS = ROWS > 3 ? 1 : REGISTERS;
    if constexpr (std::is_same_v<Weight, Nibbles>)
        nibble_sums<Number, ROWS>(line, soon, rows, stride, columns, before, total);
    else
        UNROLLED for (int o = 0; o < OUTPUTS; o += COUNT)
            UNROLLED for (int at = 0; at < REGISTERS; at += PARTS) {
                const Lanes* own = before ? before + o : nullptr;
                Lanes* to = total[0] + o;
                if constexpr (IN_BYTES)
                    byte_sums<ROWS, COUNT, PARTS>(at, line + o, soon + o, rows, stride, columns, base, own, to);
                else float_sums<Weight, Number, ROWS, COUNT, PARTS>(at, line + o, soon + o, rows, stride, columns, own, to);
            }
    if (after) {
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int o = 0; o < OUTPUTS; o++) after[r * OUTPUTS + o] = total[r][o];
        return;
    }
    if constexpr (IN_BYTES)
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int o = 0; o < OUTPUTS; o++)
                total[r][o] = converted((Integers)total[r][o]);
    Lanes part[ROWS + 3];
    UNROLLED for (int r = 0; r < ROWS; r++) part[r] = quarters(total[r]);
    UNROLLED for (int r = ROWS; r < ROWS + 3; r++) part[r] = part[ROWS - 1];
    UNROLLED for (int r = 0; r < ROWS; r += 4) {
        Lanes four = sums_of_rows(part[r], part[r + 1], part[r + 2], part[r + 3]);
        std::memcpy(result + r, &four, sizeof(Four) * std::min(4, ROWS - r));
    }
}

constexpr int MOST_ROWS = 6;  // of a tile

template <typename Weight, typename Number>
inline void tile_of(int rows, const Weight* weight, int64_t count, const Number* from, int64_t stride, int64_t columns,
                    const int32_t* base, const Weight* const* next, const Lanes* before, Lanes* after, Four* result) {
    auto run = tile<Weight, Number, MOST_ROWS>;
    switch (rows) {
        case 1: run = tile<Weight, Number, 1>; break;
        case 2: run = tile<Weight, Number, 2>; break;
        case 3: run = tile<Weight, Number, 3>; break;
        case 4: run = tile<Weight, Number, 4>; break;
        case 5: run = tile<Weight, Number, 5>; break;
    }
    run(weight, count, from, stride, columns, base, next, before, after, result);
}

struct Span {
    int64_t begin, end;
};

// Work that threads share, step after step. A step is cut into parts: a thread first takes the parts laid out for it, then
// parts that other threads have not begun. So a thread that the system suspends delays the others by one part only.
class Crew {
    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };
    std::vector<Counter> counters_;  // of a step: parts that are done, and parts of each thread that are taken
    int64_t threads_;

   public:
    static constexpr int64_t PARTS = 4;  // per thread and step
    Crew(int64_t threads, int64_t steps) : counters_((threads + 1) * steps), threads_(threads) {}

    // One thread of the crew. All call `share` in the same order.
    class Member {
        Crew& crew_;
        int64_t thread_, step_ = 0;

       public:
        Member(Crew& crew, int64_t thread) : crew_(crew), thread_(thread) {}

        // The next step: calls take(span, until) until all of `count` has been done by some thread. Spans begin at whole
        // units; `until` is the end of this thread's own parts. Returns when the whole step is done.
        template <typename Take>
        void share(int64_t count, int64_t unit, Take take) {
            Counter* counters = &crew_.counters_[step_++ * (crew_.threads_ + 1)];
            int64_t threads = crew_.threads_, units = (count + unit - 1) / unit, done = 0;
            int64_t of_thread = threads == 1 ? 1 : std::min(PARTS, (units + threads - 1) / threads);
            int64_t parts = of_thread * threads;
            auto start = [&](int64_t part) { return std::min(count, units * part / parts * unit); };
            for (int64_t other = 0; other < threads; other++) {
                int64_t owner = (thread_ + other) % threads, first = owner * of_thread;
                std::atomic<int64_t>& taken = counters[1 + owner].value;
                while (taken.load(std::memory_order_relaxed) < of_thread) {
                    int64_t part = taken.fetch_add(1, std::memory_order_relaxed);
                    if (part >= of_thread) break;
                    Span span{start(first + part), start(first + part + 1)};
                    if (span.begin < span.end) take(span, other ? span.end : start(first + of_thread));
                    done++;
                }
            }
            if (threads == 1) return;
            std::atomic<int64_t>& all = counters->value;
            if (done) all.fetch_add(done, std::memory_order_acq_rel);
            for (int64_t looks = 1; all.load(std::memory_order_acquire) < parts; looks++) {
                if (looks % 1024 == 0) sched_yield();  // the thread with the last part may be waiting for this core
#if defined(__x86_64__)
                else __builtin_ia32_pause();
#endif
            }
        }
    };
};

// Memory aligned to a cache line: vectors across two lines load at half speed.
template <typename Number>
struct Aligned {
    typedef Number value_type;
    Aligned() = default;
    template <typename Other>
    Aligned(const Aligned<Other>&) {}
    Number* allocate(size_t count) { return (Number*)::operator new(count * sizeof(Number), std::align_val_t(64)); }
    template <typename Other>
    void construct(Other*) {}  // no initial values: all of it will be written
    void deallocate(Number* numbers, size_t) { ::operator delete(numbers, std::align_val_t(64)); }
    bool operator==(const Aligned&) const { return true; }
    bool operator!=(const Aligned&) const { return false; }
};
template <typename Number>
using Block = std::vector<Number, Aligned<Number>>;

// Where sums are stored: outputs lie `bytes` apart, rows `row_bytes`.
struct Goal {
    const void* first;
    int64_t row_bytes, bytes;
    // Prefetch the lines that will be written, which another core may hold, while the sums are still being computed.
    void expect(Span rows, Span outputs) const {
        for (int64_t row = rows.begin; row < rows.end; row++) {
            const char* from = (const char*)first + row * row_bytes;
            for (int64_t at = outputs.begin * bytes; at < outputs.end * bytes; at += 64) __builtin_prefetch(from + at, 1);
        }
    }
};

// How many rows, outputs, and bytes of columns are processed at once, so that they stay in the first cache. Partial sums
// are stored in between, which costs more than reading rows from the second cache if those have at most `WHOLE_BYTES`.
constexpr int64_t ROW_BLOCK = 4 * MOST_ROWS, OUTPUT_BLOCK = 8 * OUTPUTS, COLUMN_UNIT = 64;
constexpr int64_t COLUMN_BYTES = 24 << 10, WHOLE_BYTES = 64 << 10;

// What becomes of sums: scaled, a bias added, taken.
template <typename Take>
inline void finish(const Matrix& matrix, const float* steps, int64_t row, int64_t output, Four sums, int64_t count,
                   Take& take) {
    if (steps) sums *= steps[row];
    for (int o = 0; matrix.scale && o < count; o++) sums[o] *= matrix.scale[output + o];
    for (int o = 0; matrix.bias && o < count; o++) sums[o] += matrix.bias[output + o];
    take(row, output, sums, count);
}

std::atomic<int> form_of_tiles{tiles::NONE};  // as the last call from outside found it

// The same sums as `product` below by tiles, in the order of tiles. A matrix goes this way or does not, for any rows.
template <bool OF_BYTES, typename Take>
void product_by_tiles(const Matrix& matrix, const void* rows, int64_t num_rows, Span span, Take take,
                      const float* steps = nullptr) {
    auto block_of = [&](int64_t row, int64_t output, int64_t block, const uint32_t* own, int width) {
        int64_t last = std::min(block + tiles::SIDE, span.end);
        for (int64_t o = std::max(block, span.begin); o < last; o += OUTPUTS) {
            int64_t count = std::min<int64_t>(OUTPUTS, last - o);
            Four sums = {};
            for (int i = 0; i < count; i++) sums[i] = tiles::number<OF_BYTES>(own[(o + i - output) * width]);
            finish(matrix, steps, row, o, sums, count, take);
        }
    };
    const int64_t row_bytes = matrix.columns * (OF_BYTES ? 1 : 2);
    tiles::product<OF_BYTES>(form_of_tiles, (const char*)matrix.weight, matrix.outputs, row_bytes, row_bytes,
                             (const char*)rows, num_rows, span.begin, span.end, block_of);
}

template <typename Weight, typename Number>
constexpr bool WIDENED = REGISTERS > 1 && std::is_same_v<Number, float> && sizeof(Weight) < 4;

// Outputs `span` of all rows: calls take(row, first output, four sums, number of valid sums), which stores them as `goal`
// says. Outputs up to `until` will be read next. For rows in bytes: `bases`, see `byte_sums`, and `steps`, each row's scale.
template <typename Weight, typename Number, typename Take>
void product(const Matrix& matrix, const Number* rows, int64_t num_rows, Span span, int64_t until, const Goal& goal,
             Take take, const int32_t* bases = nullptr, const float* steps = nullptr) {
    int64_t columns = matrix.columns;
    int64_t of_column = std::min(num_rows, ROW_BLOCK) * (int64_t)sizeof(Number);
    int64_t of_chunk = COLUMN_BYTES / of_column / COLUMN_UNIT * COLUMN_UNIT;
    bool whole = num_rows <= MOST_ROWS || of_column * columns <= WHOLE_BYTES;
    int64_t chunk = whole ? std::max<int64_t>(columns, 1) : of_chunk;
    Block<Lanes> waiting(whole ? 0 : OUTPUT_BLOCK * ROW_BLOCK);
    // Without AVX-512 the weights that several groups of rows multiply are widened once for all; the sums are the same.
    bool widened = WIDENED<Weight, Number> && num_rows > MOST_ROWS;
    Block<float> wide(widened ? OUTPUTS * columns : 0);
    for (int64_t outputs = span.begin; outputs < span.end; outputs += OUTPUT_BLOCK) {
        int64_t last_output = std::min(span.end, outputs + OUTPUT_BLOCK);
        for (int64_t block = 0; block < num_rows; block += ROW_BLOCK) {
            int64_t of_block = std::min(num_rows - block, ROW_BLOCK), groups = (of_block + MOST_ROWS - 1) / MOST_ROWS;
            goal.expect({block, block + of_block}, {outputs, last_output});
            int64_t bounds[ROW_BLOCK / MOST_ROWS + 1], fetched[ROW_BLOCK / MOST_ROWS][OUTPUTS];
            for (int64_t group = 0; group <= groups; group++) bounds[group] = block + of_block * group / groups;
            // Every group of rows prefetches its part of the next outputs, if there are any.
            for (int64_t part = 0; part < groups * OUTPUTS; part++)
                fetched[part / OUTPUTS][part % OUTPUTS] = block ? 0 : (OUTPUTS + part / groups) * columns;
            for (int64_t begin = 0; begin == 0 || begin < columns; begin += chunk) {
                int64_t some = std::min(chunk, columns - begin);
                for (int64_t output = outputs; output < last_output; output += OUTPUTS) {
                    int64_t count = std::min<int64_t>(OUTPUTS, span.end - output);
                    const Weight* weights = (const Weight*)matrix.weight + (output * columns + begin) / COLUMNS_IN<Weight>;
                    bool is_last = output + 2 * OUTPUTS > until;
                    if constexpr (WIDENED<Weight, Number>)
                        for (int64_t o = 0; widened && o < count; o++)
                            sweep(some, [&](int64_t i, auto load, auto store) {
                                store(&wide[o * columns + i], load(weights + o * columns + i));
                                __builtin_prefetch(weights + (is_last ? 0 : (OUTPUTS + o) * columns) + i);
                            });
                    for (int64_t group = 0; group < groups; group++) {
                        int64_t first = bounds[group], last = bounds[group + 1];
                        Four result[MOST_ROWS];
                        const Weight* next[OUTPUTS];
                        for (int o = 0; o < OUTPUTS; o++) next[o] = weights + (is_last ? 0 : fetched[group][o] / COLUMNS_IN<Weight>);
                        Lanes* sums = whole ? nullptr : &waiting[(output - outputs) * ROW_BLOCK + (first - block) * OUTPUTS];
                        auto run = [&](auto* weights, auto* const* next) {
                            tile_of((int)(last - first), weights, count, rows + first * columns + begin, columns, some,
                                    bases ? bases + first : nullptr, next, begin ? sums : nullptr,
                                    begin + some < columns ? sums : nullptr, result);
                        };
                        if constexpr (WIDENED<Weight, Number>) {
                            const float *own = wide.data(), *others[OUTPUTS] = {own, own, own, own};
                            if (widened) run(own, others);
                            else run(weights, next);
                        } else run(weights, next);
                        for (int64_t row = first; row < last && begin + some >= columns; row++)
                            finish(matrix, steps, row, output, result[row - first], count, take);
                    }
                }
            }
        }
    }
}

// Input rows of a product in the model's dtype.
struct Rows {
    Block<float> wide;
    Block<bfloat16> narrow_;
    int64_t columns;
    Rows(int64_t rows, int64_t columns_, int64_t kind) : columns(columns_) {
        if (kind == BFLOAT16) narrow_.resize(rows * columns);
        else wide.resize(rows * columns);
    }
    // Calls `keep` with the address of row `row` from column `column` on.
    template <typename Keep>
    void at(int64_t row, int64_t column, Keep keep) {
        if (wide.empty()) keep(&narrow_[row * columns + column]);
        else keep(&wide[row * columns + column]);
    }
};

// Input rows rounded to bytes, from -127 to 127, each on a scale of its own.
struct ByteRows {
    Block<int8_t> bytes;
    Block<float> steps;
    Block<int32_t> bases;  // minus what adding 128 to each weight adds to a lane: a sixteenth of the total
    template <typename Number>
    ByteRows(const Number* rows, int64_t num_rows, int64_t columns)
        : bytes(num_rows * columns), steps(num_rows), bases(num_rows) {
        for (int64_t row = 0; row < num_rows; row++) {
            const Number* from = rows + row * columns;
            int8_t* to = &bytes[row * columns];
            Lanes most = {}, nothing = {};
            sweep(columns, [&](int64_t i, auto load, auto) {
                Lanes own = load(from + i), size = select(own < Lanes{}, -own, own);
                most = select(size > most, size, most);
                nothing += own * Lanes{};
            });
            float largest = 0;
            for (int lane = 0; lane < LANES; lane++) largest = std::max(largest, most[lane]);
            float units = largest > 0 ? 127.0f / largest : 0.0f;
            Integers sums = {};
            sweep(columns, [&](int64_t i, auto load, auto) {
                // Adding 1.5 * 2 ** 23 rounds to an integer, which is then in the lowest bits.
                Lanes magic = all(12582912.0f), shifted = multiply_add(load(from + i), all(units), magic);
                Integers own = (Integers)shifted - (Integers)magic;
                sums += own;
#ifdef HAS_AVX512
                Bytes small = __builtin_convertvector(own, Bytes);
#else
                int8_t small[LANES];
                for (int lane = 0; lane < LANES; lane++) small[lane] = (int8_t)own[lane];
#endif
                std::memcpy(to + i, &small, std::min<int64_t>(columns - i, LANES));
            });
            int32_t total = 0;
            for (int lane = 0; lane < LANES; lane++) total += sums[lane];
            steps[row] = largest / 127.0f + sum(nothing);  // NaN where the row has a NaN or infinity
            bases[row] = SHIFTED ? -8 * total : 0;
        }
    }
};

// Input rows in either form: `wide`, or where that is null `small`.
template <typename Take>
void product(const Matrix& matrix, const float* wide, const bfloat16* small, int64_t num_rows, Span span, int64_t until,
             const Goal& goal, Take take) {
    bool by_tiles = form_of_tiles && matrix.outputs >= tiles::SIDE;
    if (by_tiles && matrix.kind == BFLOAT16) return product_by_tiles<false>(matrix, small, num_rows, span, take);
    Block<float> widened;
    if (REGISTERS > 1 && !wide && matrix.kind != INT8_ROWS) {  // without AVX-512 rows are widened once, not at every sum
        widened.resize(num_rows * matrix.columns);
        sweep(num_rows * matrix.columns, [&](int64_t i, auto load, auto store) { store(&widened[i], load(small + i)); });
        wide = widened.data();
    }
    if (matrix.kind == INT8_ROWS) {
        ByteRows rows = wide ? ByteRows(wide, num_rows, matrix.columns) : ByteRows(small, num_rows, matrix.columns);
        if (by_tiles) product_by_tiles<true>(matrix, rows.bytes.data(), num_rows, span, take, rows.steps.data());
        else
            product<int8_t, int8_t>(matrix, rows.bytes.data(), num_rows, span, until, goal, take, rows.bases.data(),
                                    rows.steps.data());
    } else if (matrix.kind == FLOAT32) product<float, float>(matrix, wide, num_rows, span, until, goal, take);
    else if (matrix.kind == INT4 && wide) product<Nibbles, float>(matrix, wide, num_rows, span, until, goal, take);
    else if (matrix.kind == INT8 && wide) product<int8_t, float>(matrix, wide, num_rows, span, until, goal, take);
#ifdef HAS_AVX512
    else if (matrix.kind == BFLOAT16) product<bfloat16, bfloat16>(matrix, small, num_rows, span, until, goal, take);
    else if (matrix.kind == INT4) product<Nibbles, bfloat16>(matrix, small, num_rows, span, until, goal, take);
    else product<int8_t, bfloat16>(matrix, small, num_rows, span, until, goal, take);
#else
    else product<bfloat16, float>(matrix, wide, num_rows, span, until, goal, take);
#endif
}

template <typename Take>
void product(const Matrix& matrix, const Rows& rows, int64_t skipped, int64_t num_rows, Span span, int64_t until,
             const Goal& goal, Take take) {
    const float* wide = rows.wide.data() + skipped * matrix.columns;
    const bfloat16* small = rows.narrow_.data() + skipped * matrix.columns;
    product(matrix, rows.wide.empty() ? nullptr : wide, small, num_rows, span, until, goal, take);
}

// RMSNorm: normalised, rounded to the model's dtype, then multiplied by the weight. Without a weight: a copy.
template <typename Row, typename Model, typename Number>
void normalise(const Row* row, int64_t dim, const Model* weight, float epsilon, Number* to) {
    constexpr bool ROUND = sizeof(Model) == 2;
    float factor = 1.0f;
    if (weight) {
        Lanes squares = {};
        sweep(dim, [&](int64_t i, auto load, auto) { squares = multiply_add(load(row + i), load(row + i), squares); });
        factor = 1.0f / std::sqrt(sum(squares) / dim + epsilon);
    }
    sweep(dim, [&](int64_t i, auto load, auto store) {
        Lanes own = load(row + i);
        if (weight) {
            own = own * all(factor);
            own = (ROUND ? rounded(own) : own) * load(weight + i);
        }
        store(to + i, ROUND ? rounded(own) : own);
    });
}

inline float number(const void* from, int64_t index, int64_t kind) {
    return kind == BFLOAT16 ? widen(((const bfloat16*)from)[index]) : ((const float*)from)[index];
}

// Rows of blocks of `dim` numbers, of which all but the last of a row become an RMSNorm without a weight.
template <typename Number>
Block<Number> on_one_scale(const Number* rows, int64_t num_rows, int64_t columns, int64_t dim, float epsilon, Number one) {
    Block<Number> scaled(num_rows * columns), ones(dim);
    std::fill(ones.begin(), ones.end(), one);
    for (int64_t at = 0; at < num_rows * columns; at += dim)
        normalise(rows + at, dim, (at + dim) % columns ? ones.data() : nullptr, epsilon, &scaled[at]);
    return scaled;
}

}  // namespace

// --- called from outside -----------------------------------------------------------------------------------------------

// The form of tiles that products of bfloat16 and of bytes take now (`tiles::Form`).
extern "C" int64_t few_rows_tiles() { return tiles::wanted(); }

// The vectors that this was compiled for.
extern "C" const char* few_rows_vectors() {
#if defined(HAS_AVX512) && defined(__AVX512BF16__)
    return "avx512_bf16";
#elif defined(HAS_AVX512)
    return "avx512";
#elif defined(HAS_AVX2)
    return "avx2";
#else
    return "generic";
#endif
}

// y[rows, outputs] = x[rows, columns] weight^T (+ bias). `kind`: of the weight, with a scale where it is in bytes;
// `row_kind`: of x, bias and y. Where `dim` is not 0, x is brought `on_one_scale` first.
extern "C" void few_rows_linear(const void* x, int64_t row_kind, const void* weight, int64_t kind, const float* scale,
                                const void* bias, void* y, int64_t num_rows, int64_t columns, int64_t outputs,
                                int64_t dim, double epsilon, int64_t threads) {
    form_of_tiles = tiles::wanted();
    Block<float> wide;
    Block<bfloat16> small;
    if (dim && row_kind == BFLOAT16)
        small = on_one_scale((const bfloat16*)x, num_rows, columns, dim, epsilon, narrow(1.0f)), x = small.data();
    else if (dim) wide = on_one_scale((const float*)x, num_rows, columns, dim, epsilon, 1.0f), x = wide.data();
    std::vector<float> biases;
    for (int64_t o = 0; bias && o < outputs; o++) biases.push_back(number(bias, o, row_kind));
    Matrix matrix{weight, scale, bias ? biases.data() : nullptr, kind, outputs, columns};
    auto take = [&](int64_t row, int64_t output, Four sums, int64_t count) {
        for (int o = 0; o < count; o++) {
            if (row_kind == BFLOAT16) ((bfloat16*)y)[row * outputs + output + o] = narrow(sums[o]);
            else ((float*)y)[row * outputs + output + o] = sums[o];
        }
    };
    int64_t bytes = row_kind == BFLOAT16 ? 2 : 4;
    Goal goal{y, outputs * bytes, bytes};
    Crew crew(threads, 1);
#pragma omp parallel num_threads((int)threads)
    Crew::Member(crew, omp_get_thread_num()).share(outputs, OUTPUT_BLOCK, [&](Span span, int64_t until) {
        product(matrix, row_kind == BFLOAT16 ? nullptr : (const float*)x, (const bfloat16*)x, num_rows, span, until, goal,
                take);
    });
}

// A forward pass of a decoder over new tokens: layers of [norm, attention, norm, gated feed-forward], a norm and an output
// head. All arrays are contiguous; a null pointer leaves the step out.
extern "C" {
struct Layer {
    const void *norm_attention, *qkv, *out, *norm_feed_forward, *gate_up, *down;
    const float *qkv_scale, *out_scale, *gate_up_scale, *down_scale;  // of INT8 and INT8_ROWS matrices
    const void *key, *value, *up;             // matrices of their own; null: they lie behind `qkv` and `gate_up`
    const float *qkv_bias, *out_bias;         // or null
    const void *norm_query, *norm_key;        // [head_dim] of `kind`, before rotary positions; or null
    void *keys, *values;  // [sequences * slots, key_value_heads * head_dim] of `kind`
    void* kept;           // out, as `Pass::states`: the states after the layer; or null
};

struct Pass {
    int64_t kind;         // FLOAT32 or BFLOAT16: of everything but rounded matrices
    int64_t matrix_kind;  // of the layers' matrices
    int64_t sequences, tokens, dim, heads, key_value_heads, head_dim, intermediate, layers, vocabulary;
    int64_t halves;         // sequences of a request; all first halves lie before all second ones
    int64_t slots;          // of a sequence in the cache
    int64_t columns;        // of the mask
    int64_t masks_of;       // number of masks, used by the sequences in turn
    int64_t logits_of;      // how many of the last tokens of every sequence get logits
    int64_t positions_of;   // number of rows of positions, used by the sequences in turn
    int64_t last_position;  // greater positions are replaced by it
    int64_t rotary_rows;
    int64_t words;          // rows of `embedding`
    int64_t states_stride;  // from one token's states to the next token's
    int64_t side_by_side;   // whether the states of a request's halves lie beside each other, token by token
    int64_t rotary_halves;  // whether a channel turns with the one half a head further, not with its neighbour
    int64_t threads;
    double epsilon;
    double guidance;           // logits become second half + guidance * (first half - second half)
    const void* hidden;        // [sequences, tokens, dim] of `kind`: embeddings; or null
    const int64_t* words_fed;  // [sequences / halves, tokens]: rows of `embedding`, where `hidden` is null
    const void* embedding;     // [words, dim] of `kind`
    const void* features;      // [sequences / halves, tokens, halves, dim] of `kind`: joined to embeddings by `join`; or null
    const void* join;          // [dim, 2 dim] of `kind`
    const void* join_bias;     // [dim] of `kind`, or null
    const int64_t* lengths;    // [sequences]: slots that are full and seen by all new tokens; null: none
    const int64_t* starts;     // [sequences]: the first of these slots that is seen; null: 0
    const int64_t* origins;    // [sequences], given with `lengths`: `lengths - origins` is added to positions
    const int64_t* positions;  // [positions_of, tokens]; negative sums count from the end
    const float* rotary;       // [rotary_rows, head_dim / 2, 2]; with `rotary_halves` [rotary_rows, 2, head_dim / 2]
    const bool* mask;          // [masks_of, tokens, columns]: slots behind the full ones
    const int64_t* places;     // [sequences * tokens]: rows of the cache; null: the last slots of the mask
    const void* norm_out;      // [dim]
    const void* head;          // [vocabulary, dim] of `kind`
    void* states;              // out, rows of [dim] of `kind`: states after the last norm
    float* logits;             // out, [sequences, logits_of, vocabulary]; with guidance [sequences / halves, ...]
};
}

namespace {

// Rotary positions: pairs of neighbouring channels, rotated by an angle with this cosine and sine.
inline Lanes turned(Lanes channels, Lanes angles) {
#ifdef HAS_AVX512
    Integers even = {0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14};
    Integers swap = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
    Lanes sign = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
#else
    IntegerRegister even = {0, 0, 2, 2, 4, 4, 6, 6}, swap = {1, 0, 3, 2, 5, 4, 7, 6};
    Register sign = {-1, 1, -1, 1, -1, 1, -1, 1};
#endif
    UNROLLED for (int p = 0; p < REGISTERS; p++) {
        Register angle = part(angles, p), &own = part(channels, p);
        Register cosine = __builtin_shuffle(angle, even), sine = __builtin_shuffle(angle, even + 1) * sign;
        own = multiply_add(own, cosine, __builtin_shuffle(own, swap) * sine);
    }
    return channels;
}

// The same for all channels of a head, in either form; calls store(to + channel, lanes).
template <typename Number, typename Store>
inline void turn(const float* head, const float* angles, int64_t channels, bool halves, Number* to, Store store_as) {
    if (!halves) {
        sweep(channels, [&](int64_t d, auto load, auto store) {
            store_as(store, to + d, turned(load(head + d), load(angles + d)));
        });
        return;
    }
    int64_t half = channels / 2;
    sweep(half, [&](int64_t d, auto load, auto store) {
        Lanes first = load(head + d), second = load(head + half + d), cosine = load(angles + d), sine = load(angles + half + d);
        store_as(store, to + d, multiply_add(first, cosine, -second * sine));
        store_as(store, to + half + d, multiply_add(second, cosine, first * sine));
    });
}

constexpr int64_t AHEAD = 24;  // how many keys ahead are prefetched when several queries read them
constexpr int CHAINS = 4;  // partial sums, each over every fourth key's value; added up at the end

// Dot products, still in lanes, of `QUERIES` queries with `COUNT` keys. `whole`, `rest`: channels in sixteens, and others.
template <int QUERIES, int COUNT, typename Number>
inline void dots(const float* queries, int64_t padded, const Number* const* key, int64_t stride, int64_t whole, int64_t rest,
                 Lanes (*result)[OUTPUTS], int first) {
    Lanes total[QUERIES][COUNT];
    UNROLLED for (int q = 0; q < QUERIES; q++)
        UNROLLED for (int o = 0; o < COUNT; o++) total[q][o] = Lanes{};
    UNROLLED for (int64_t d = 0; d < whole; d += LANES)
        UNROLLED for (int p = 0; p < REGISTERS; p++) {
            Register own[COUNT];
            UNROLLED for (int o = 0; o < COUNT; o++) {
                own[o] = load_part(key[o] + d, p);
                if constexpr (QUERIES > 1)
                    if (p == 0) __builtin_prefetch(key[o] + d + AHEAD * stride);
            }
            UNROLLED for (int q = 0; q < QUERIES; q++) {
                Register query = held(load_part(queries + q * padded + d, p));
                UNROLLED for (int o = 0; o < COUNT; o++)
                    part(total[q][o], p) = multiply_add(own[o], query, part(total[q][o], p));
            }
        }
    if (rest)
        UNROLLED for (int o = 0; o < COUNT; o++) {
            Lanes own = load_some(key[o] + whole, rest);
            UNROLLED for (int q = 0; q < QUERIES; q++)
                total[q][o] = multiply_add(own, load(queries + q * padded + whole), total[q][o]);
        }
    UNROLLED for (int q = 0; q < QUERIES; q++)
        UNROLLED for (int o = 0; o < COUNT; o++) result[q][first + o] = total[q][o];
}

// Dot products of `QUERIES` queries with keys `from` to `to`, times `scale`; key k lies in slot `slot(k)`. `BLOCKS`: how
// many sixteens of channels; 0: any number. The scores of two queries lie `scores_of` apart, with room behind the last.
template <int BLOCKS, int QUERIES, typename Number, typename Slot>
inline void score(const float* queries, int64_t padded, const Number* keys, Slot slot, int64_t from, int64_t to,
                  int64_t stride, int64_t channels, float scale, float* scores, int64_t scores_of) {
    int64_t whole = BLOCKS ? BLOCKS * LANES : channels / LANES * LANES, rest = BLOCKS ? 0 : channels - whole;
    constexpr int COUNT = QUERIES == 1 ? OUTPUTS : OUTPUTS_AT_ONCE;
    for (int64_t k = from; k < to; k += OUTPUTS) {
        const Number* key[OUTPUTS];
        UNROLLED for (int o = 0; o < OUTPUTS; o++) key[o] = keys + slot(std::min(k + o, to - 1)) * stride;
        Lanes total[QUERIES][OUTPUTS];
        UNROLLED for (int o = 0; o < OUTPUTS; o += COUNT)
            dots<QUERIES, COUNT>(queries, padded, key + o, stride, whole, rest, total, o);
        Four own[QUERIES];
        if constexpr (QUERIES == 4) {
            Lanes four = sums_of_rows(quarters(total[0]), quarters(total[1]), quarters(total[2]), quarters(total[3]));
            four = four * all(scale);
            std::memcpy(own, &four, sizeof(own));
        } else {
            UNROLLED for (int q = 0; q < QUERIES; q++) own[q] = sums(total[q]) * (Four{} + scale);
        }
        UNROLLED for (int q = 0; q < QUERIES; q++) std::memcpy(scores + q * scores_of + k, &own[q], sizeof(Four));
    }
}

// Turns the scores of a query into weights. Returns the factor that makes them add up to one.
inline float weights_of(float* scores, int64_t count) {
    Lanes most = all(-INFINITY), total = {};
    for (int64_t k = count; k % LANES; k++) scores[k] = -INFINITY;
    for (int64_t k = 0; k < count; k += LANES) {
        Lanes own = load(scores + k);
        most = select(own > most, own, most);
    }
#ifdef HAS_AVX512
    for (int apart = LANES / 2; apart; apart /= 2) {
        Lanes other = __builtin_shuffle(most, Integers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} ^ apart);
        most = other > most ? other : most;
    }
#else
    float largest = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) largest = std::max(largest, most[lane]);
    most = all(largest);
#endif
    for (int64_t k = 0; k < count; k += LANES) {
        Lanes own = exponential(load(scores + k) - most);
        total = total + own;
        store(scores + k, own);
    }
    return 1.0f / sum(total);
}

// As `weigh`, of the chains from `first` on that are summed at once.
template <int BLOCKS, int QUERIES, bool WHOLE, typename Number, typename Slot>
inline void weigh_chains(int first, const Number* values, Slot slot, int64_t from, int64_t to, int64_t stride, int64_t rest,
                         const float* scores, int64_t scores_of, float* chains, int64_t padded) {
    constexpr int LAST = CHAINS_AT_ONCE < CHAINS ? CHAINS_AT_ONCE : CHAINS - 1;
    Lanes total[CHAINS_AT_ONCE][QUERIES][BLOCKS];
    auto each = [&](auto take) {
        UNROLLED for (int c = 0; c < CHAINS_AT_ONCE; c++)
            UNROLLED for (int q = 0; q < QUERIES; q++)
                UNROLLED for (int b = 0; b < BLOCKS; b++)
                    take(total[c][q][b], chains + (q * CHAINS + first + c) * padded + b * LANES);
    };
    each([&](Lanes& sum, const float* before) { sum = from ? load(before) : Lanes{}; });
    auto add = [&](int c, int64_t key) {
        const Number* value = values + slot(key) * stride;
        Lanes own[BLOCKS];
        UNROLLED for (int b = 0; b < BLOCKS; b++)
            own[b] = WHOLE || b < BLOCKS - 1 ? load(value + b * LANES) : load_some(value + b * LANES, rest);
        UNROLLED for (int q = 0; q < QUERIES; q++) {
            Lanes weight = all(scores[q * scores_of + key]);
            UNROLLED for (int b = 0; b < BLOCKS; b++) total[c][q][b] = multiply_add(weight, own[b], total[c][q][b]);
        }
    };
    int64_t k = from;
    for (; k + CHAINS <= to; k += CHAINS) UNROLLED for (int c = 0; c < CHAINS_AT_ONCE; c++) add(c, k + first + c);
    UNROLLED for (int c = 0; c < LAST; c++)
        if (k + first + c < to) add(c, k + first + c);
    each([&](Lanes& sum, float* after) { store(after, sum); });
}

// Adds the values of keys `from` (a multiple of `CHAINS`) to `to`, weighted by `scores`, to sums over `BLOCKS` times sixteen
// channels for `QUERIES` queries. Two queries' scores lie `scores_of` apart, their sums `CHAINS * padded`. `rest`: how many
// of the last sixteen channels exist.
template <int BLOCKS, int QUERIES, bool WHOLE, typename Number, typename Slot>
inline void weigh(const Number* values, Slot slot, int64_t from, int64_t to, int64_t stride, int64_t rest,
                  const float* scores, int64_t scores_of, float* chains, int64_t padded) {
    UNROLLED for (int first = 0; first < CHAINS; first += CHAINS_AT_ONCE)
        weigh_chains<BLOCKS, QUERIES, WHOLE>(first, values, slot, from, to, stride, rest, scores, scores_of, chains, padded);
}

inline int64_t length_of(const Pass& pass, int64_t sequence) { return pass.lengths ? pass.lengths[sequence] : 0; }

inline int64_t position_of(const Pass& pass, int64_t sequence, int64_t token) {
    int64_t given = pass.positions[sequence % pass.positions_of * pass.tokens + token];
    if (pass.lengths) given += pass.lengths[sequence] - pass.origins[sequence];
    return std::min(given, pass.last_position);
}

inline int64_t place_of(const Pass& pass, int64_t sequence, int64_t token) {
    if (pass.places) return pass.places[sequence * pass.tokens + token];
    return sequence * pass.slots + length_of(pass, sequence) + pass.columns - pass.tokens + token;
}

// The cosines and sines of a token's position.
inline const float* angles_of(const Pass& pass, int64_t sequence, int64_t token) {
    int64_t position = position_of(pass, sequence, token);
    return pass.rotary + (position < 0 ? position + pass.rotary_rows : position) * pass.head_dim;
}

// Where the states of a token are stored.
inline int64_t state_of(const Pass& pass, int64_t row) {
    int64_t requests = pass.sequences / pass.halves, sequence = row / pass.tokens, token = row % pass.tokens;
    if (!pass.side_by_side) return row * pass.states_stride;
    return (sequence % requests * pass.tokens + token) * pass.states_stride + sequence / requests * pass.dim;
}

// The slots that each token sees, in their order.
struct Seen {
    int64_t lists, most, tokens;  // number of lists, of at most `most` slots
    std::vector<int32_t> slots;
    std::vector<int64_t> counts;
    Seen(const Pass& pass) : tokens(pass.tokens) {
        int64_t longest = 0;
        for (int64_t sequence = 0; pass.lengths && sequence < pass.sequences; sequence++)
            longest = std::max(longest, pass.lengths[sequence]);
        lists = (pass.lengths ? pass.sequences : pass.masks_of) * pass.tokens;
        most = longest + pass.columns;
        slots.resize(lists * most);
        counts.resize(lists);
    }
    int64_t list(int64_t sequence, int64_t token) const { return (sequence * tokens + token) % lists; }
    void fill(const Pass& pass, int64_t list) {
        int64_t sequence = list / tokens, full = length_of(pass, sequence), count = 0;
        int32_t* own = &slots[list * most];
        for (int64_t slot = pass.starts ? pass.starts[sequence] : 0; slot < full; slot++) own[count++] = (int32_t)slot;
        const bool* mask = pass.mask + list % (pass.masks_of * tokens) * pass.columns;
        for (int64_t column = 0; column < pass.columns; column++)
            if (mask[column]) own[count++] = (int32_t)(full + column);
        counts[list] = count;
    }
};

// How many tokens, keys, and bytes of a token's keys (whose heads lie beside each other) are processed at once, so that
// they stay in the cache while all queries read them.
constexpr int64_t TOKEN_BLOCK = 16, KEY_BLOCK = 24, KEY_BYTES = 1024;

// Working memory of attention for some heads of one sequence.
struct Attention {
    int64_t groups, queries, padded, scores_of;  // key heads at once, queries of each; size of a query, size of its scores
    Attention(const Pass& pass, int64_t most) {
        int64_t bytes = pass.head_dim * (pass.kind == BFLOAT16 ? 2 : 4);
        groups = std::max<int64_t>(1, std::min(pass.key_value_heads, KEY_BYTES / bytes));
        queries = std::min(pass.tokens, TOKEN_BLOCK) * (pass.heads / pass.key_value_heads);
        padded = (pass.head_dim + LANES - 1) / LANES * LANES;
        scores_of = (most + 2 * LANES) / LANES * LANES;
    }
    int64_t room() const { return groups * queries * (padded + scores_of + CHAINS * padded); }
};

// Rotate the keys of the new tokens, and write keys and values to the cache.
template <typename Number>
void remember(const Pass& pass, const Layer& layer, const float* qkv, int64_t sequence, int64_t group) {
    int64_t D = pass.head_dim, width = (pass.heads + 2 * pass.key_value_heads) * D, stride = pass.key_value_heads * D;
    Number *keys = (Number*)layer.keys + group * D, *values = (Number*)layer.values + group * D;
    for (int64_t token = 0; token < pass.tokens; token++) {
        int64_t row = sequence * pass.tokens + token, place = place_of(pass, sequence, token) * stride;
        const float *key = qkv + row * width + (pass.heads + group) * D, *value = key + stride;
        const float* angle = angles_of(pass, sequence, token);
        turn(key, angle, D, pass.rotary_halves, keys + place, [](auto store, Number* to, Lanes lanes) { store(to, lanes); });
        sweep(D, [&](int64_t d, auto load, auto store) { store(values + place + d, load(value + d)); });
    }
}

// Attention by tiles for some tokens, in the query heads of one key head: scores are products of keys with queries, sums are
// products of weights, rounded to bfloat16, with values. Keys count by their place in a token's list: whatever slots they
// lie in, sums run over 32 of them at a time in one order. `queries` [tokens, heads, padded] are rounded; writes `sums`.
inline void attend_by_tiles(const Pass& pass, const Layer& layer, int64_t sequence, int64_t group, Span tokens, const Seen& seen,
                            const float* queries, int64_t padded, float* scores, int64_t scores_of, float* sums) {
    constexpr int64_t KEYS = tiles::BYTES / 2, SIDE = tiles::SIDE, MOST = tiles::MOST;
    int64_t D = pass.head_dim, per_group = pass.heads / pass.key_value_heads, stride = pass.key_value_heads * D;
    int64_t num_queries = (tokens.end - tokens.begin) * per_group, full = length_of(pass, sequence);
    int64_t first = std::min(pass.starts ? pass.starts[sequence] : 0, full), slots = full + pass.columns - first;
    int64_t common = (full - first) / KEYS * KEYS, channel_tiles = padded / SIDE;
    const bfloat16* keys = (const bfloat16*)layer.keys + (sequence * pass.slots + first) * stride + group * D;
    const bfloat16* values = (const bfloat16*)layer.values + sequence * pass.slots * stride + group * D;
    static thread_local Block<bfloat16> small, few, weights, nothing;
    static thread_local Block<uint32_t> of_all, of_some;
    static thread_local Block<float> result, factors;
    auto list = [&](int64_t query) { return seen.list(sequence, tokens.begin + query / per_group); };
    auto listed = [&](int64_t query) { return &seen.slots[list(query) * seen.most]; };
    auto count = [&](int64_t query) { return seen.counts[list(query)]; };

    small.resize(num_queries * D);
    factors.resize(num_queries);
    for (int64_t query = 0; query < num_queries; query++)
        sweep(D, [&](int64_t d, auto load, auto store) { store(&small[query * D + d], load(queries + query * padded + d)); });
    int64_t between = stride;
    if (slots < SIDE) {  // a block of keys is whole
        few.resize(SIDE * D);
        std::memset(few.data(), 0, SIDE * D * sizeof(bfloat16));
        for (int64_t slot = 0; slot < slots; slot++) std::memcpy(&few[slot * D], keys + slot * stride, D * sizeof(bfloat16));
        keys = few.data(), between = D;
    }
    float scale = 1.0f / std::sqrt((float)D);
    int64_t blocks = std::max(slots, SIDE);
    tiles::product<false>(form_of_tiles, (const char*)keys, blocks, 2 * D, 2 * between, (const char*)small.data(),
                          num_queries, 0, blocks,
                          [&](int64_t query, int64_t slot, int64_t, const uint32_t* own, int width) {
                              float* to = scores + query * scores_of + slot;
                              for (int i = 0; i < SIDE; i++) to[i] = tiles::number<false>(own[i * width]) * scale;
                          });
    for (int64_t query = 0; query < num_queries; query++) {
        float* own = scores + query * scores_of;
        for (int64_t k = full - first; k < count(query); k++) own[k] = own[listed(query)[k] - first];
        factors[query] = count(query) ? weights_of(own, count(query)) : 0;
    }
    // Values of keys `from` to `to` as pairs of keys; what is missing of the last 32 keys and of the last channels is zero.
    nothing.resize(padded);
    std::memset(nothing.data(), 0, padded * sizeof(bfloat16));
    auto pack = [&](int64_t from, int64_t to, auto slot, Block<uint32_t>& packed) {
        int64_t steps = (to - from + KEYS - 1) / KEYS;
        packed.resize(steps * channel_tiles * SIDE * SIDE);
        for (int64_t pair = 0; pair < steps * SIDE; pair++) {
            int64_t key = from + 2 * pair;
            const bfloat16* one = key < to ? values + slot(key) * stride : nothing.data();
            const bfloat16* other = key + 1 < to ? values + slot(key + 1) * stride : nothing.data();
            for (int64_t tile = 0; tile < channel_tiles; tile++) {
                int64_t before = tile / MOST * MOST, beside = std::min(channel_tiles - before, MOST);
                int64_t at = before * steps + pair / SIDE * beside + tile - before, channels = std::min(SIDE, D - tile * SIDE);
                uint32_t* line = &packed[(at * SIDE + pair % SIDE) * SIDE];
                const bfloat16 *low = one + tile * SIDE, *high = other + tile * SIDE;
                if (channels == SIDE)
                    for (int c = 0; c < SIDE; c++) line[c] = (uint32_t)low[c] | (uint32_t)high[c] << 16;
                else
                    for (int c = 0; c < SIDE; c++) line[c] = c < channels ? (uint32_t)low[c] | (uint32_t)high[c] << 16 : 0;
            }
        }
    };
    pack(0, common, [first](int64_t key) { return first + key; }, of_all);
    for (int64_t begin = 0; begin < num_queries; begin += SIDE) {
        int64_t some = std::min(SIDE, num_queries - begin);
        result.resize(channel_tiles * SIDE * SIDE);
        std::memset(result.data(), 0, result.size() * sizeof(float));
        // Adds the values of keys `from` to `to` to the sums of the lines that `takes` names.
        auto add = [&](int64_t from, int64_t to, auto takes, const Block<uint32_t>& packed) {
            int64_t width = (to - from + KEYS - 1) / KEYS * KEYS;
            weights.resize(SIDE * width);
            std::memset(weights.data(), 0, SIDE * width * sizeof(bfloat16));
            for (int64_t line = 0; line < some; line++) {
                if (!takes(line)) continue;
                const float* own = scores + (begin + line) * scores_of + from;
                sweep(std::min(count(begin + line), to) - from, [&](int64_t k, auto load, auto store) {
                    store(&weights[line * width + k], load(own + k));
                });
            }
            tiles::add_lines(form_of_tiles, (const char*)weights.data(), 2 * width, (const char*)packed.data(),
                             (int)channel_tiles, result.data());
        };
        if (common) add(0, common, [](int64_t) { return true; }, of_all);
        // Lists that begin alike beyond that share what is packed: those of a chain all do.
        uint32_t done = 0, now;
        for (int64_t last = some - 1; last >= 0; last--) {
            if (done >> last & 1 || count(begin + last) <= common) continue;
            const int32_t* slots_of = listed(begin + last);
            int64_t to = count(begin + last);
            now = 0;
            for (int64_t line = 0; line < some; line++) {
                int64_t own = count(begin + line) - common;
                bool alike = own > 0 && own <= to - common &&
                             !std::memcmp(listed(begin + line) + common, slots_of + common, own * sizeof(int32_t));
                if (alike && !(done >> line & 1)) now |= 1u << line;
            }
            done |= now;
            pack(common, to, [slots_of](int64_t key) { return (int64_t)slots_of[key]; }, of_some);
            add(common, to, [now](int64_t line) { return now >> line & 1; }, of_some);
        }
        for (int64_t line = 0; line < some; line++)
            for (int64_t d = 0; d < padded; d++)
                sums[(begin + line) * padded + d] =
                    result[(d / SIDE * SIDE + line) * SIDE + d % SIDE] * factors[begin + line];
    }
}

// Attention for some tokens of one sequence, in the query heads that share the key heads `groups`. Keys that all tokens see
// are read once for all, some at a time; the sums of a query still run over its own keys in their order.
template <typename Number>
void attend(const Pass& pass, const Layer& layer, const float* qkv, int64_t sequence, Span groups, Span tokens,
            const Seen& seen, const Attention& sizes, float* room, Rows& attended) {
    int64_t D = pass.head_dim, per_group = pass.heads / pass.key_value_heads, padded = sizes.padded;
    int64_t width = (pass.heads + 2 * pass.key_value_heads) * D, stride = pass.key_value_heads * D;
    int64_t of_group = (tokens.end - tokens.begin) * per_group, scores_of = sizes.scores_of;
    const Number* keys = (const Number*)layer.keys + sequence * pass.slots * stride;
    const Number* values = (const Number*)layer.values + sequence * pass.slots * stride;
    float *queries = room, *scores = queries + sizes.groups * sizes.queries * padded;
    float *chains = scores + sizes.groups * sizes.queries * scores_of, scale = 1.0f / std::sqrt((float)D);
    // Calls take(group, query, token, head) for each query.
    auto each = [&](auto take) {
        for (int64_t group = groups.begin; group < groups.end; group++)
            for (int64_t token = tokens.begin; token < tokens.end; token++)
                for (int64_t head = group * per_group; head < (group + 1) * per_group; head++)
                    take(group, (group - groups.begin) * of_group + (token - tokens.begin) * per_group + head % per_group,
                         token, head);
    };
    each([&](int64_t, int64_t query, int64_t token, int64_t head) {
        const float *own = qkv + (sequence * pass.tokens + token) * width + head * D, *angle = angles_of(pass, sequence, token);
        std::memset(queries + query * padded, 0, padded * sizeof(float));  // zero beyond the last channel
        turn(own, angle, D, pass.rotary_halves, queries + query * padded, [](auto store, float* to, Lanes lanes) {
            store(to, sizeof(Number) == 2 ? rounded(lanes) : lanes);
        });
    });
    if constexpr (sizeof(Number) == 2)
        if (form_of_tiles) {
            for (int64_t group = groups.begin; group < groups.end; group++) {
                int64_t before = (group - groups.begin) * of_group;
                attend_by_tiles(pass, layer, sequence, group, tokens, seen, queries + before * padded, padded,
                                scores + before * scores_of, scores_of, chains + before * padded);
            }
            return each([&](int64_t, int64_t query, int64_t token, int64_t head) {
                attended.at(sequence * pass.tokens + token, head * D, [&](auto* to) {
                    sweep(D, [&](int64_t d, auto load, auto store) { store(to + d, load(chains + query * padded + d)); });
                });
            });
        }
    int64_t first = pass.starts ? pass.starts[sequence] : 0, common = std::max<int64_t>(0, length_of(pass, sequence) - first);
    common = common / CHAINS * CHAINS;
    int64_t at_once = of_group > 1 ? KEY_BLOCK : std::max<int64_t>(common, 1);
    auto in_order = [first](int64_t key) { return first + key; };
    auto run_score = [&](auto blocks) {
        constexpr int BLOCKS = decltype(blocks)::value;
        for (int64_t from = 0; from < common; from += at_once)
            for (int64_t group = groups.begin; group < groups.end; group++) {
                int64_t to = std::min(common, from + at_once);
                auto some = [&](auto count, int64_t query) {
                    int64_t number = (group - groups.begin) * of_group + query;
                    score<BLOCKS, decltype(count)::value>(queries + number * padded, padded, keys + group * D, in_order,
                                                          from, to, stride, D, scale, scores + number * scores_of,
                                                          scores_of);
                };
                int64_t query = 0;
                for (; query + MOST_QUERIES <= of_group; query += MOST_QUERIES)
                    some(std::integral_constant<int, MOST_QUERIES>(), query);
                switch (of_group - query) {
                    case 1: some(std::integral_constant<int, 1>(), query); break;
                    case 2: some(std::integral_constant<int, 2>(), query); break;
                    case 3: some(std::integral_constant<int, 3>(), query); break;
                }
            }
        each([&](int64_t group, int64_t query, int64_t token, int64_t) {
            int64_t list = seen.list(sequence, token);
            const int32_t* slots = &seen.slots[list * seen.most];
            auto listed = [slots](int64_t key) { return slots[key]; };
            score<BLOCKS, 1>(queries + query * padded, padded, keys + group * D, listed, common, seen.counts[list], stride,
                             D, scale, scores + query * scores_of, scores_of);
        });
    };
    if (D == 2 * LANES) run_score(std::integral_constant<int, 2>());
    else if (D == 4 * LANES) run_score(std::integral_constant<int, 4>());
    else run_score(std::integral_constant<int, 0>());
    // The factor of a query is stored in its first number, which is not needed any more.
    each([&](int64_t, int64_t query, int64_t token, int64_t) {
        int64_t count = seen.counts[seen.list(sequence, token)];
        queries[query * padded] = count ? weights_of(scores + query * scores_of, count) : 0;
    });
    // All channels at once for one query; fewer for several, so that the sums stay in registers.
    int64_t most = (of_group > 1 ? 2 : 4) * LANES;
    for (int64_t begin = 0, channels; begin < D; begin += channels) {
        int64_t whole = std::min<int64_t>(most, (D - begin) / LANES * LANES), rest = whole ? 0 : D - begin;
        channels = whole + rest;
        auto run_weigh = [&](auto blocks, auto whole) {
            constexpr int BLOCKS = decltype(blocks)::value, MOST_QUERIES = BLOCKS > 2 ? 1 : 3;
            constexpr bool WHOLE = decltype(whole)::value;
            for (int64_t query = 0, all = (groups.end - groups.begin) * of_group, count; query < all; query += count) {
                int64_t group = groups.begin + query / of_group;
                count = std::min<int64_t>(MOST_QUERIES, of_group - query % of_group);
                auto some = [&](auto count) {
                    weigh<BLOCKS, decltype(count)::value, WHOLE>(
                        values + group * D + begin, in_order, 0, common, stride, rest, scores + query * scores_of, scores_of,
                        chains + query * CHAINS * padded + begin, padded);
                };
                if constexpr (MOST_QUERIES == 3) {
                    if (count == 3) some(std::integral_constant<int, 3>());
                    if (count == 2) some(std::integral_constant<int, 2>());
                }
                if (count == 1) some(std::integral_constant<int, 1>());
            }
            each([&](int64_t group, int64_t query, int64_t token, int64_t head) {
                int64_t list = seen.list(sequence, token);
                const int32_t* slots = &seen.slots[list * seen.most];
                auto listed = [slots](int64_t key) { return slots[key]; };
                float* own = chains + query * CHAINS * padded + begin;
                weigh<BLOCKS, 1, WHOLE>(values + group * D + begin, listed, common, seen.counts[list], stride, rest,
                                        scores + query * scores_of, scores_of, own, padded);
                attended.at(sequence * pass.tokens + token, head * D + begin, [&](auto* to) {
                    sweep(channels, [&](int64_t d, auto, auto store) {
                        Lanes sum = (load(own + d) + load(own + padded + d)) + (load(own + 2 * padded + d) + load(own + 3 * padded + d));
                        store(to + d, sum * all(queries[query * padded]));
                    });
                });
            });
        };
        auto run = [&](auto blocks) { run_weigh(blocks, std::true_type()); };
        if (whole == 4 * LANES) run(std::integral_constant<int, 4>());
        else if (whole == 3 * LANES) run(std::integral_constant<int, 3>());
        else if (whole == 2 * LANES) run(std::integral_constant<int, 2>());
        else if (whole) run(std::integral_constant<int, 1>());
        else run_weigh(std::integral_constant<int, 1>(), std::false_type());
    }
}

}  // namespace

// Returns 0; 1 if a place or position lies outside its table, 2 if a word does (then nothing was written).
extern "C" int64_t few_rows_pass(const Pass* given, const Layer* layers) {
    form_of_tiles = tiles::wanted();
    const Pass& pass = *given;
    int64_t R = pass.sequences * pass.tokens, dim = pass.dim, I = pass.intermediate;
    int64_t width = (pass.heads + 2 * pass.key_value_heads) * pass.head_dim, requests = pass.sequences / pass.halves;
    for (int64_t sequence = 0; sequence < pass.sequences; sequence++) {
        int64_t full = length_of(pass, sequence), start = pass.starts ? pass.starts[sequence] : 0;
        if (full < 0 || start < 0 || full + pass.columns > pass.slots) return 1;
        for (int64_t token = 0; token < pass.tokens; token++) {
            int64_t place = place_of(pass, sequence, token), position = position_of(pass, sequence, token);
            if (place < 0 || place >= pass.sequences * pass.slots) return 1;
            if (position < -pass.rotary_rows || position >= pass.rotary_rows) return 1;
        }
    }
    for (int64_t i = 0; pass.words_fed && i < requests * pass.tokens; i++)
        if (pass.words_fed[i] < 0 || pass.words_fed[i] >= pass.words) return 2;
    Seen seen(pass);
    Attention sizes(pass, seen.most);
    Block<float> residual(R * dim), qkv(R * width), room(pass.threads * sizes.room()), gates(R * I), ups(R * I), bias;
    Rows normed(R, dim, pass.kind), last(R, dim, pass.kind);
    Rows attended(R, pass.heads * pass.head_dim, pass.kind), activated(R, I, pass.kind);
    Block<float> raw(pass.guidance ? pass.sequences * pass.logits_of * pass.vocabulary : 0);
    Rows pairs(pass.features ? R : 0, 2 * dim, pass.kind);
    for (int64_t i = 0; pass.join_bias && i < dim; i++) bias.push_back(number(pass.join_bias, i, pass.kind));
    int64_t bytes_of = pass.kind == BFLOAT16 ? 2 : 4;
    Crew crew(pass.threads, pass.layers * 8 + 6);  // upper bound for the calls of `share` below
#pragma omp parallel num_threads((int)pass.threads)
    {
        int thread = omp_get_thread_num();
        Crew::Member member(crew, thread);
        auto rows = [&](auto take) {
            member.share(R, 1, [&](Span span, int64_t) {
                for (int64_t row = span.begin; row < span.end; row++) take(row);
            });
        };
        auto outputs = [&](int64_t count, auto take) { member.share(count, OUTPUT_BLOCK, take); };
        auto into = [](const float* first, int64_t width) { return Goal{first, width * 4, 4}; };
        // Stores sums in rows of `width` numbers.
        auto keep = [](float* where, int64_t width) {
            return [=](int64_t row, int64_t output, Four sums, int64_t count) {
                store(where + row * width + output, sums, count);
            };
        };
        member.share(seen.lists, 1, [&](Span lists, int64_t) {
            for (int64_t list = lists.begin; list < lists.end; list++) seen.fill(pass, list);
        });
        // The embedding of a row.
        auto embedded = [&](int64_t row) {
            if (pass.hidden) return (const char*)pass.hidden + row * dim * bytes_of;
            return (const char*)pass.embedding + pass.words_fed[row % (requests * pass.tokens)] * dim * bytes_of;
        };
        if (pass.features) {
            rows([&](int64_t row) {
                pairs.at(row, 0, [&](auto* own) {
                    int64_t request_row = row % (requests * pass.tokens), half = row / (requests * pass.tokens);
                    int64_t feature = (request_row * pass.halves + half) * dim;
                    std::memcpy(own, embedded(row), dim * bytes_of);
                    std::memcpy(own + dim, (const char*)pass.features + feature * bytes_of, dim * bytes_of);
                });
            });
            Matrix join{pass.join, nullptr, bias.empty() ? nullptr : bias.data(), pass.kind, dim, 2 * dim};
            outputs(dim, [&](Span span, int64_t until) {
                product(join, pairs, 0, R, span, until, into(residual.data(), dim), keep(residual.data(), dim));
            });
        } else {
            rows([&](int64_t row) {
                for (int64_t i = 0; i < dim; i++) residual[row * dim + i] = number(embedded(row), i, pass.kind);
            });
        }
        auto normalised = [&](const float* from, int64_t width, const void* weight, auto* to) {
            float epsilon = (float)pass.epsilon;
            if (pass.kind == BFLOAT16) normalise(from, width, (const bfloat16*)weight, epsilon, to);
            else normalise(from, width, (const float*)weight, epsilon, to);
        };
        // Normalises rows; stores them as they were where `layer` wants that.
        auto norm = [&](const void* weight, Rows& to, const Layer* layer = nullptr) {
            rows([&](int64_t row) {
                const float* from = &residual[row * dim];
                if (layer && layer->kept)
                    sweep(dim, [&](int64_t i, auto load, auto store) {
                        Lanes own = load(from + i);
                        if (pass.kind == BFLOAT16) store((bfloat16*)layer->kept + state_of(pass, row) + i, own);
                        else store((float*)layer->kept + state_of(pass, row) + i, own);
                    });
                to.at(row, 0, [&](auto* own) { normalised(from, dim, weight, own); });
            });
        };
        // Adds products to the rows.
        auto add = [&](const Matrix& matrix, const Rows& from) {
            outputs(dim, [&](Span span, int64_t until) {
                product(matrix, from, 0, R, span, until, into(residual.data(), dim),
                        [&](int64_t row, int64_t output, Four sums, int64_t count) {
                            float* own = &residual[row * dim + output];
                            if (count == OUTPUTS) {
                                Four sum;
                                std::memcpy(&sum, own, 16);
                                sum += sums;
                                std::memcpy(own, &sum, 16);
                            } else {
                                for (int o = 0; o < count; o++) own[o] += sums[o];
                            }
                        });
            });
        };
        for (int64_t l = 0; l < pass.layers; l++) {
            const Layer& layer = layers[l];
            norm(layer.norm_attention, normed, l ? &layers[l - 1] : nullptr);
            int64_t D = pass.head_dim, of_queries = pass.heads * D, of_keys = pass.key_value_heads * D;
            // Outputs `begin` to `end` of queries, keys and values come from this matrix.
            auto project = [&](const void* weight, int64_t begin, int64_t end, Span span, int64_t until) {
                Span own{std::max(span.begin, begin) - begin, std::min(span.end, end) - begin};
                if (own.begin >= own.end) return;
                Matrix matrix{weight, layer.qkv_scale, layer.qkv_bias ? layer.qkv_bias + begin : nullptr, pass.matrix_kind,
                              end - begin, dim};
                product(matrix, normed, 0, R, own, std::min(until, end) - begin, into(qkv.data() + begin, width),
                        keep(qkv.data() + begin, width));
            };
            outputs(width, [&](Span span, int64_t until) {
                project(layer.qkv, 0, layer.key ? of_queries : width, span, until);
                if (!layer.key) return;
                project(layer.key, of_queries, of_queries + of_keys, span, until);
                project(layer.value, of_queries + of_keys, width, span, until);
            });
            if (layer.norm_query) {
                rows([&](int64_t row) {
                    for (int64_t head = 0; head < pass.heads + pass.key_value_heads; head++) {
                        const void* weight = head < pass.heads ? layer.norm_query : layer.norm_key;
                        float* own = &qkv[row * width + head * D];
                        normalised(own, D, weight, own);
                    }
                });
            }
            member.share(pass.sequences * pass.key_value_heads, 1, [&](Span heads, int64_t) {
                for (int64_t head = heads.begin, end; head < heads.end; head = end) {
                    int64_t sequence = head / pass.key_value_heads, before = sequence * pass.key_value_heads;
                    end = std::min({heads.end, head + sizes.groups, before + pass.key_value_heads});
                    for (int64_t group = head; group < end; group++)
                        (pass.kind == BFLOAT16 ? remember<bfloat16> : remember<float>)(pass, layer, qkv.data(), sequence,
                                                                                        group - before);
                    for (int64_t token = 0; token < pass.tokens; token += TOKEN_BLOCK)
                        (pass.kind == BFLOAT16 ? attend<bfloat16> : attend<float>)(
                            pass, layer, qkv.data(), sequence, {head - before, end - before},
                            {token, std::min(pass.tokens, token + TOKEN_BLOCK)}, seen, sizes,
                            &room[thread * sizes.room()], attended);
                }
            });
            add({layer.out, layer.out_scale, layer.out_bias, pass.matrix_kind, dim, of_queries}, attended);
            norm(layer.norm_feed_forward, normed);
            // A part of the gate, what it gates, and their product.
            const void* up = layer.up ? layer.up : (const char*)layer.gate_up + bytes_of_weights(pass.matrix_kind, I * dim);
            const float* up_scale = layer.gate_up_scale ? layer.gate_up_scale + I : nullptr;
            outputs(I, [&](Span span, int64_t until) {
                product({layer.gate_up, layer.gate_up_scale, nullptr, pass.matrix_kind, I, dim}, normed, 0, R, span, until,
                        into(gates.data(), I), keep(gates.data(), I));
                product({up, up_scale, nullptr, pass.matrix_kind, I, dim}, normed, 0, R, span, until,
                        into(ups.data(), I), keep(ups.data(), I));
                for (int64_t row = 0; row < R; row++)
                    activated.at(row, span.begin, [&](auto* to) {
                        const float *gate = &gates[row * I + span.begin], *gates_what = &ups[row * I + span.begin];
                        sweep(span.end - span.begin, [&](int64_t i, auto load, auto store) {
                            Lanes own = load(gate + i), bounded = select(-own < all(88.0f), -own, all(88.0f));
                            store(to + i, own / (all(1.0f) + exponential(bounded)) * load(gates_what + i));
                        });
                    });
            });
            add({layer.down, layer.down_scale, nullptr, pass.matrix_kind, dim, I}, activated);
        }
        norm(pass.norm_out, last, pass.layers ? &layers[pass.layers - 1] : nullptr);
        rows([&](int64_t row) {
            last.at(row, 0, [&](auto* own) {
                std::memcpy((char*)pass.states + state_of(pass, row) * sizeof(*own), own, dim * sizeof(*own));
            });
        });
        // Logits of the last tokens of every sequence; for all tokens it is one product.
        bool everything = pass.logits_of == pass.tokens;
        int64_t pieces = everything ? 1 : pass.sequences, kept = everything ? R : pass.logits_of;
        int64_t skipped = everything ? 0 : pass.tokens - kept;
        Matrix head{pass.head, nullptr, nullptr, pass.kind, pass.vocabulary, dim};
        float* logits = pass.guidance ? raw.data() : pass.logits;
        outputs(pass.head ? pass.vocabulary : 0, [&](Span span, int64_t until) {
            for (int64_t piece = 0; piece < pieces; piece++)
                product(head, last, piece * pass.tokens + skipped, kept, span, until,
                        into(logits + piece * kept * pass.vocabulary, pass.vocabulary),
                        [&](int64_t row, int64_t output, Four sums, int64_t count) {
                            // Rounded like the output of the head.
                            if (pass.kind == BFLOAT16) {
                                Lanes wide = {};
                                std::memcpy(&wide, &sums, 16);
                                wide = rounded(wide);
                                std::memcpy(&sums, &wide, 16);
                            }
                            store(&logits[(piece * kept + row) * pass.vocabulary + output], sums, count);
                        });
            for (int64_t row = 0; row < requests * pass.logits_of && pass.guidance; row++) {
                const float* with = &raw[row * pass.vocabulary + span.begin];
                const float* without = with + requests * pass.logits_of * pass.vocabulary;
                float* guided = &pass.logits[row * pass.vocabulary + span.begin];
                sweep(span.end - span.begin, [&](int64_t i, auto load, auto store) {
                    Lanes base = load(without + i);
                    Lanes more = all((float)pass.guidance) * (load(with + i) - base);
                    asm("" : "+m"(more));  // rounded before it is added, as torch does
                    store(guided + i, base + more);
                });
            }
        });
    }
    return 0;
}
