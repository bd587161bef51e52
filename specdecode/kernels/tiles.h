// Sums of products by tiles: sixteen outputs by up to sixteen rows at once, as processors with AMX multiply.
//
// Belongs here: the operations on tiles, in the processor's form and in plain C++, and sums over all columns of a block.
// Does not belong here: which products run by tiles, and what becomes of their sums (`few_rows.cpp`).
//
// Weights are the first factor and lie as they are: a tile is 64 bytes of sixteen outputs. Rows are the second: a tile is
// sixteen times four bytes of each row. Every sum runs over the columns in one order, whatever rows stand beside it.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1
#endif

namespace tiles {

constexpr int SIDE = 16, BYTES = 64, MOST = 4;  // outputs or rows of a tile; bytes of a line; tiles of rows at once
constexpr int WEIGHTS = MOST, ROWS = MOST + 1;  // tiles before these hold sums; rows take two in turns
constexpr int64_t AHEAD = 16;                   // how many tiles of weights ahead are prefetched

// The operations in plain C++, rounding as the processor's manual says (Intel SDM, TDPBF16PS and TDPBSSD).
struct Plain {
    uint8_t tile[8][SIDE][BYTES];
    int width;  // rows of a tile
    explicit Plain(int width_) : width(width_) {}
    template <int T>
    void zero() { std::memset(tile[T], 0, sizeof(tile[T])); }
    template <int T>
    void load(const void* from, int64_t stride) {
        int bytes = T >= ROWS ? 4 * width : BYTES;
        for (int line = 0; line < SIDE; line++) std::memcpy(tile[T][line], (const char*)from + line * stride, bytes);
    }
    template <int T>
    void store(void* to, int64_t stride) const {
        for (int line = 0; line < SIDE; line++) std::memcpy((char*)to + line * stride, tile[T][line], 4 * width);
    }
    template <int T, int A, int B>
    void add_bfloat16() {
        for (int output = 0; output < SIDE; output++)
            for (int row = 0; row < width; row++) {
                float sums[2] = {}, total;
                for (int pair = 0; pair < SIDE; pair++)
                    for (int half = 0; half < 2; half++)
                        sums[half] = __builtin_fmaf(wide(tile[A][output], 2 * pair + half),
                                                    wide(tile[B][pair], 2 * row + half), sums[half]);
                std::memcpy(&total, tile[T][output] + 4 * row, 4);
                total += sums[0] + sums[1];
                std::memcpy(tile[T][output] + 4 * row, &total, 4);
            }
    }
    template <int T, int A, int B>
    void add_bytes() {
        for (int output = 0; output < SIDE; output++)
            for (int row = 0; row < width; row++) {
                int32_t total;
                std::memcpy(&total, tile[T][output] + 4 * row, 4);
                for (int line = 0; line < SIDE; line++)
                    for (int i = 0; i < 4; i++)
                        total += (int8_t)tile[A][output][4 * line + i] * (int8_t)tile[B][line][4 * row + i];
                std::memcpy(tile[T][output] + 4 * row, &total, 4);
            }
    }
    static float wide(const uint8_t* line, int index) {
        uint32_t bits = (uint32_t)(line[2 * index] | line[2 * index + 1] << 8) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }
};

#ifdef HAS_TILES
// The processor's. A thread configures its tiles for one block of rows and gives them back, so that other libraries'
// tiles live beside these.
struct Native {
    explicit Native(int width) {
        struct alignas(64) { uint8_t palette = 1, start = 0, unused[14] = {}; uint16_t bytes[16] = {}; uint8_t lines[16] = {}; } sizes;
        for (int t = 0; t < 8; t++) sizes.bytes[t] = t == WEIGHTS ? BYTES : 4 * width, sizes.lines[t] = SIDE;
        asm volatile("ldtilecfg %0" : : "m"(sizes) : "memory");
    }
    ~Native() { asm volatile("tilerelease" : : : "memory"); }
    template <int T>
    void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
    template <int T>
    void load(const void* from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
    }
    template <int T>
    void store(void* to, int64_t stride) const {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
    }
    template <int T, int A, int B>
    void add_bfloat16() { asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(T), "i"(A), "i"(B)); }
    template <int T, int A, int B>
    void add_bytes() { asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(T), "i"(A), "i"(B)); }
};
#endif

// Rows as second factors: for each 64 bytes of columns and each tile of `width` rows [16, width] times four bytes, padded
// with zeros.
inline void pack(const char* rows, int64_t num_rows, int64_t row_bytes, int count, int width, char* to) {
    int64_t steps = (row_bytes + BYTES - 1) / BYTES;
    std::memset(to, 0, steps * count * width * BYTES);
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t at = 0; at < row_bytes; at += 4) {
            int64_t tile = at / BYTES * count + row / width, line = at % BYTES / 4;
            std::memcpy(to + (tile * SIDE + line) * 4 * width + row % width * 4, rows + row * row_bytes + at,
                        row_bytes - at < 4 ? row_bytes - at : 4);
        }
}

// Calls of(0), of(1) and so on below `COUNT`, each number a constant.
template <int COUNT, int FROM = 0, typename Of>
void each(Of of) {
    of(std::integral_constant<int, FROM>());
    if constexpr (FROM + 1 < COUNT) each<COUNT, FROM + 1>(of);
}

// Sums of sixteen outputs, whose weights of `row_bytes` lie `stride` bytes apart, for `COUNT` tiles of packed rows: [COUNT,
// 16, width] in four bytes each. `going_on`: they are added to those that stand there.
template <bool OF_BYTES, int COUNT, typename Form>
void sums(Form& form, const char* weights, int64_t row_bytes, int64_t stride, const char* packed, int width, void* result,
          bool going_on = false) {
    const int64_t line = 4 * width;
    each<COUNT>([&](auto tile) {
        if (going_on) form.template load<tile>((char*)result + tile * SIDE * line, line);
        else form.template zero<tile>();
    });
    auto add = [&](const char* from, int64_t stride, const char* rows) {
        form.template load<WEIGHTS>(from, stride);
        each<COUNT>([&](auto tile) {
            constexpr int T = tile, B = ROWS + T % 2;
            form.template load<B>(rows + T * width * BYTES, 4 * width);
            if constexpr (OF_BYTES) form.template add_bytes<T, WEIGHTS, B>();
            else form.template add_bfloat16<T, WEIGHTS, B>();
        });
    };
    int64_t at = 0;
    for (; at + BYTES <= row_bytes; at += BYTES) {
        for (int line = 0; line < SIDE; line++) __builtin_prefetch(weights + line * stride + at + AHEAD * BYTES);
        add(weights + at, stride, packed + at * COUNT * width);
    }
    if (at < row_bytes) {
        char last[SIDE][BYTES] = {};
        for (int line = 0; line < SIDE; line++) std::memcpy(last[line], weights + line * stride + at, row_bytes - at);
        add(last[0], BYTES, packed + at * COUNT * width);
    }
    each<COUNT>([&](auto tile) { form.template store<tile>((char*)result + tile * SIDE * line, line); });
}

// Sums of outputs `begin` to `end` of at least sixteen `outputs`, whose weights lie `stride` bytes apart: calls take(row,
// output, block, sums, width) with the sums of sixteen outputs from `output` on, `width` apart. New are those from `block`
// on; the last sixteen may overlap those before.
template <bool OF_BYTES, typename Form, typename Take>
void product_in(const char* weights, int64_t outputs, int64_t row_bytes, int64_t stride, const char* rows, int64_t num_rows,
                int64_t begin, int64_t end, Take take) {
    std::vector<char> packed;
    for (int64_t first = 0; first < num_rows; first += MOST * SIDE) {
        int64_t some = num_rows - first < MOST * SIDE ? num_rows - first : MOST * SIDE;
        int count = (int)((some + SIDE - 1) / SIDE), width = count > 1 ? SIDE : (int)some;
        packed.resize((row_bytes + BYTES - 1) / BYTES * count * width * BYTES);
        pack(rows + first * row_bytes, some, row_bytes, count, width, packed.data());
        Form form(width);
        alignas(64) uint32_t result[MOST * SIDE * SIDE];
        for (int64_t block = begin / SIDE * SIDE; block < end; block += SIDE) {
            int64_t output = block + SIDE > outputs ? outputs - SIDE : block;
            const char* from = weights + output * stride;
            each<MOST>([&](auto tile) {
                if (count == tile + 1) sums<OF_BYTES, tile + 1>(form, from, row_bytes, stride, packed.data(), width, result);
            });
            for (int64_t row = 0; row < some; row++)
                take(first + row, output, block, &result[row / SIDE * SIDE * width + row % SIDE], width);
        }
    }
}

// A sum as a number.
template <bool OF_BYTES>
inline float number(uint32_t sum) {
    if (OF_BYTES) return (float)(int32_t)sum;
    float value;
    std::memcpy(&value, &sum, 4);
    return value;
}

enum Form { NONE = 0, PLAIN = 1, NATIVE = 2 };

template <bool OF_BYTES, typename Take>
void product(int form, const char* weights, int64_t outputs, int64_t row_bytes, int64_t stride, const char* rows,
             int64_t num_rows, int64_t begin, int64_t end, Take take) {
#ifdef HAS_TILES
    if (form == NATIVE)
        return product_in<OF_BYTES, Native>(weights, outputs, row_bytes, stride, rows, num_rows, begin, end, take);
#endif
    product_in<OF_BYTES, Plain>(weights, outputs, row_bytes, stride, rows, num_rows, begin, end, take);
}

// Sixteen lines of weights in bfloat16, `row_bytes` (whole tiles) each, by `count` tiles of packed rows, added to `result`,
// [count, 16, 16]. Of four packed tiles at a time all 64 bytes lie beside each other, as `sums` reads them.
template <typename Form>
void add_lines_in(const char* weights, int64_t row_bytes, const char* packed, int count, float* result) {
    Form form(SIDE);
    for (int first = 0; first < count; first += MOST)
        each<MOST>([&](auto tile) {
            constexpr int COUNT = tile + 1;
            if (count - first < MOST ? count - first == COUNT : COUNT == MOST)
                sums<false, COUNT>(form, weights, row_bytes, row_bytes, packed + first * row_bytes * SIDE, SIDE,
                                   result + first * SIDE * SIDE, true);
        });
}

inline void add_lines(int form, const char* weights, int64_t row_bytes, const char* packed, int count, float* result) {
#ifdef HAS_TILES
    if (form == NATIVE) return add_lines_in<Native>(weights, row_bytes, packed, count, result);
#endif
    add_lines_in<Plain>(weights, row_bytes, packed, count, result);
}

// Whether both forms say the same of a small product: no user's picture is to find out that they do not.
inline bool agree() {
    std::vector<char> weights(SIDE * 96), rows(19 * 96);
    std::vector<float> said[2];
    for (size_t i = 0; i < weights.size(); i++) weights[i] = (char)(i % 2 ? 0x3f + i % 3 / 2 * 0x80 : i * 37);
    for (size_t i = 0; i < rows.size(); i++) rows[i] = (char)(i % 2 ? 0x40 : i * 53);
    for (int form : {PLAIN, NATIVE}) {
        product<false>(form, weights.data(), SIDE, 96, 96, rows.data(), 19, 0, SIDE,
                       [&](int64_t, int64_t, int64_t, const uint32_t* sums, int width) {
                           for (int o = 0; o < SIDE; o++) said[form - 1].push_back(number<false>(sums[o * width]));
                       });
        std::vector<float> lines(SIDE * SIDE, 1.0f);
        add_lines(form, weights.data(), BYTES, rows.data(), 1, lines.data());
        said[form - 1].insert(said[form - 1].end(), lines.begin(), lines.end());
    }
    for (size_t i = 0; i < said[0].size(); i++)
        if (!(std::abs(said[0][i] - said[1][i]) <= 1e-3f)) return false;
    return true;
}

// Which form products use, as `$VARGEN_TILES` asks: "plain", "off", or what the processor has and the system grants.
inline int wanted() {
    const char* wish = std::getenv("VARGEN_TILES");
    if (wish && !std::strcmp(wish, "plain")) return PLAIN;
    if (wish && !std::strcmp(wish, "off")) return NONE;
#ifdef HAS_TILES
    // ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA: once a process, for all of its threads and children.
    static const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0 && agree();
    if (granted) return NATIVE;
#endif
    return NONE;
}

}  // namespace tiles
